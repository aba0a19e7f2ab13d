package org.fedlens.sdk.store

import org.fedlens.sdk.KeyedHash
import org.fedlens.sdk.StateException
import org.fedlens.sdk.StateException.Reason
import java.io.File
import java.io.IOException
import java.security.SecureRandom

/** A secret of 32 bytes in a file that only its owner may read. */
public class FileSecret(
    private val file: File,
) : SecretStore {
    @Throws(StateException::class)
    override fun secret(): ByteArray {
        if (!file.exists()) {
            val fresh = ByteArray(KeyedHash.DIGEST_BYTES).also(SecureRandom()::nextBytes)
            writing("secret $file") { replace(file, fresh) }
        }
        val secret = read(file)
        if (secret.size != KeyedHash.DIGEST_BYTES) {
            throw StateException(
                Reason.DAMAGED,
                "$file must hold ${KeyedHash.DIGEST_BYTES} bytes, found ${secret.size}; restore it, or " +
                    "erase this client (eraseHere) to enrol as a new one",
            )
        }
        return secret
    }

    @Throws(StateException::class)
    override fun delete() {
        deleteSecret(file)
    }

    internal companion object {
        /** Write a file with this content durably. */
        @Throws(IOException::class)
        fun replace(
            file: File,
            content: ByteArray,
        ) {
            val fresh = File(file.absoluteFile.parentFile, file.name + ".new")
            writeDurably(fresh, { file }) { it.write(content) }
        }

        fun read(file: File): ByteArray =
            try {
                file.readBytes()
            } catch (error: IOException) {
                throw StateException(Reason.DAMAGED, "secret $file cannot be read: ${error.whyNot()}", error)
            }

        fun deleteSecret(file: File) {
            if (!file.delete() && file.exists()) {
                throw StateException(Reason.NOT_WRITABLE, "secret $file cannot be deleted")
            }
        }
    }
}
