package org.fedlens.sdk.store

import android.security.keystore.KeyGenParameterSpec
import android.security.keystore.KeyPermanentlyInvalidatedException
import android.security.keystore.KeyProperties
import org.fedlens.sdk.KeyedHash
import org.fedlens.sdk.StateException
import org.fedlens.sdk.StateException.Reason
import java.io.File
import java.io.IOException
import java.security.GeneralSecurityException
import java.security.Key
import java.security.KeyStore
import java.security.ProviderException
import java.security.SecureRandom
import javax.crypto.AEADBadTagException
import javax.crypto.Cipher
import javax.crypto.KeyGenerator
import javax.crypto.spec.GCMParameterSpec

/**
 * A secret encrypted with a key that never leaves the Android keystore: the file alone, for example from a backup, is
 * worthless.
 *
 *     offset  bytes  content
 *     0       1      version, now 1
 *     1       12     nonce
 *     13      48     the secret, 32 bytes, by AES-256-GCM, with its tag
 *
 * Exclude the file from backups: restored on another phone, without its key, it makes the client unusable until it is
 * erased.
 *
 * @param alias Name of the key in the keystore, different for each file.
 */
public class KeystoreSecret(
    private val file: File,
    private val alias: String = "org.fedlens.secret",
) : SecretStore {
    @Throws(StateException::class)
    override fun secret(): ByteArray = if (file.exists()) decrypt(FileSecret.read(file)) else make()

    @Throws(StateException::class)
    override fun delete() {
        FileSecret.deleteSecret(file)
        guarded("delete the key of") { keystore().deleteEntry(alias) }
    }

    private fun make(): ByteArray {
        val secret = ByteArray(KeyedHash.DIGEST_BYTES).also(SecureRandom()::nextBytes)
        val content =
            guarded("encrypt") {
                val cipher = Cipher.getInstance(TRANSFORMATION)
                cipher.init(Cipher.ENCRYPT_MODE, generateKey())
                byteArrayOf(VERSION) + cipher.iv + cipher.doFinal(secret)
            }
        writing("secret $file") { FileSecret.replace(file, content) }
        // Read back, because a secret that cannot be decrypted must not become an identity.
        return decrypt(FileSecret.read(file))
    }

    private fun decrypt(content: ByteArray): ByteArray {
        if (content.size != FILE_BYTES || content[0] != VERSION) {
            throw StateException(
                Reason.DAMAGED,
                "$file must hold version $VERSION of a secret in $FILE_BYTES bytes, found ${content.size} bytes of " +
                    "another form; $REMEDY",
            )
        }
        return guarded("decrypt") {
            val key: Key =
                keystore().getKey(alias, null) ?: throw StateException(
                    Reason.DAMAGED,
                    "the key '$alias' of $file is not in the Android keystore, as after a backup is restored on " +
                        "another phone; $REMEDY",
                )
            val cipher = Cipher.getInstance(TRANSFORMATION)
            cipher.init(Cipher.DECRYPT_MODE, key, GCMParameterSpec(TAG_BITS, content, 1, NONCE_BYTES))
            cipher.doFinal(content, 1 + NONCE_BYTES, content.size - 1 - NONCE_BYTES)
        }
    }

    private fun generateKey(): Key {
        val purposes = KeyProperties.PURPOSE_ENCRYPT or KeyProperties.PURPOSE_DECRYPT
        val wanted =
            KeyGenParameterSpec
                .Builder(alias, purposes)
                .setBlockModes(KeyProperties.BLOCK_MODE_GCM)
                .setEncryptionPaddings(KeyProperties.ENCRYPTION_PADDING_NONE)
                .setKeySize(KEY_BITS)
                .build()
        return KeyGenerator.getInstance(KeyProperties.KEY_ALGORITHM_AES, KEYSTORE).run {
            init(wanted)
            generateKey()
        }
    }

    private fun keystore(): KeyStore = KeyStore.getInstance(KEYSTORE).apply { load(null) }

    private fun <T> guarded(
        verb: String,
        work: () -> T,
    ): T =
        try {
            work()
        } catch (error: GeneralSecurityException) {
            throw failure(verb, error)
        } catch (error: ProviderException) {
            throw failure(verb, error)
        } catch (error: IOException) {
            throw StateException(Reason.NOT_WRITABLE, "the Android keystore cannot be read: ${error.whyNot()}", error)
        }

    private fun failure(
        verb: String,
        error: Exception,
    ): StateException {
        // Android throws the others, too, while its keystore is busy or its process starts anew.
        val isForGood = error is AEADBadTagException || error is KeyPermanentlyInvalidatedException
        return StateException(
            if (isForGood) Reason.DAMAGED else Reason.NOT_WRITABLE,
            "the Android keystore cannot $verb the secret $file with key '$alias' " +
                "(${error.javaClass.simpleName}: ${error.message}); $REMEDY",
            error,
        )
    }

    private companion object {
        const val KEYSTORE = "AndroidKeyStore"
        const val TRANSFORMATION = "AES/GCM/NoPadding"
        const val VERSION: Byte = 1
        const val KEY_BITS = 256
        const val NONCE_BYTES = 12
        const val TAG_BITS = 128
        const val FILE_BYTES = 1 + NONCE_BYTES + KeyedHash.DIGEST_BYTES + TAG_BITS / 8
        const val REMEDY = "try again; if that does not help, erase this client (eraseHere) to enrol as a new one"
    }
}
