package org.fedlens.sdk.store

import android.security.keystore.KeyGenParameterSpec
import org.fedlens.sdk.StateException.Reason
import org.junit.After
import org.junit.Assert.assertArrayEquals
import org.junit.Assert.assertEquals
import org.junit.Assert.assertFalse
import org.junit.Assert.assertTrue
import org.junit.Before
import org.junit.Rule
import org.junit.Test
import org.junit.rules.TemporaryFolder
import org.junit.runner.RunWith
import org.robolectric.RobolectricTestRunner
import org.robolectric.annotation.Config
import java.io.File
import java.io.InputStream
import java.io.OutputStream
import java.security.InvalidKeyException
import java.security.Key
import java.security.KeyStoreException
import java.security.KeyStoreSpi
import java.security.Provider
import java.security.ProviderException
import java.security.SecureRandom
import java.security.Security
import java.security.cert.Certificate
import java.security.spec.AlgorithmParameterSpec
import java.util.Collections
import java.util.Date
import java.util.Enumeration
import javax.crypto.KeyGeneratorSpi
import javax.crypto.SecretKey
import javax.crypto.spec.SecretKeySpec

/** A keystore in memory that replaces Android's: keys by alias. */
class FakeKeystore : KeyStoreSpi() {
    override fun engineGetKey(
        alias: String,
        password: CharArray?,
    ): Key? {
        if (isAway) throw ProviderException("the keystore's process has ended")
        return keys[alias]
    }

    override fun engineDeleteEntry(alias: String) {
        if (isAway) throw ProviderException("the keystore's process has ended")
        if (isBroken) throw KeyStoreException("the keystore is broken")
        keys -= alias
    }

    override fun engineContainsAlias(alias: String) = alias in keys

    override fun engineAliases(): Enumeration<String> = Collections.enumeration(keys.keys)

    override fun engineSize() = keys.size

    override fun engineIsKeyEntry(alias: String) = alias in keys

    override fun engineIsCertificateEntry(alias: String) = false

    override fun engineLoad(
        stream: InputStream?,
        password: CharArray?,
    ) = Unit

    override fun engineStore(
        stream: OutputStream?,
        password: CharArray?,
    ) = Unit

    override fun engineGetCertificateChain(alias: String): Array<Certificate>? = null

    override fun engineGetCertificate(alias: String): Certificate? = null

    override fun engineGetCertificateAlias(certificate: Certificate): String? = null

    override fun engineGetCreationDate(alias: String): Date? = null

    override fun engineSetKeyEntry(
        alias: String,
        key: Key,
        password: CharArray?,
        chain: Array<out Certificate>?,
    ) = throw UnsupportedOperationException()

    override fun engineSetKeyEntry(
        alias: String,
        key: ByteArray,
        chain: Array<out Certificate>?,
    ) = throw UnsupportedOperationException()

    override fun engineSetCertificateEntry(
        alias: String,
        certificate: Certificate,
    ) = throw UnsupportedOperationException()

    companion object {
        val keys = HashMap<String, Key>()
        var isBroken = false
        var isAway = false
    }
}

class FakeKeyGenerator : KeyGeneratorSpi() {
    private lateinit var wanted: KeyGenParameterSpec

    override fun engineInit(random: SecureRandom) = throw UnsupportedOperationException()

    override fun engineInit(
        bits: Int,
        random: SecureRandom,
    ) = throw UnsupportedOperationException()

    override fun engineInit(
        parameters: AlgorithmParameterSpec,
        random: SecureRandom?,
    ) {
        wanted = parameters as KeyGenParameterSpec
    }

    override fun engineGenerateKey(): SecretKey {
        if (FakeKeystore.isAway) throw ProviderException("the keystore's process has ended")
        val key = SecretKeySpec(ByteArray(wanted.keySize / 8).also(SecureRandom()::nextBytes), "AES")
        FakeKeystore.keys[wanted.keystoreAlias] = key
        return key
    }
}

private class FakeProvider : Provider("AndroidKeyStore", "1", "stands in for that of Android") {
    init {
        put("KeyStore.AndroidKeyStore", FakeKeystore::class.java.name)
        put("KeyGenerator.AES", FakeKeyGenerator::class.java.name)
    }
}

@RunWith(RobolectricTestRunner::class)
@Config(sdk = [35])
class KeystoreSecretTest {
    @get:Rule
    val folder = TemporaryFolder()

    private val file by lazy { File(folder.root, "secret") }
    private val secrets by lazy { KeystoreSecret(file, "mine") }

    @Before
    fun install() {
        Security.addProvider(FakeProvider())
    }

    @After
    fun remove() {
        Security.removeProvider("AndroidKeyStore")
        FakeKeystore.keys.clear()
        FakeKeystore.isBroken = false
        FakeKeystore.isAway = false
    }

    @Test
    fun `the secret is made once, and its file alone does not hold it`() {
        val secret = secrets.secret()
        assertEquals(32, secret.size)
        assertArrayEquals(secret, KeystoreSecret(file, "mine").secret())
        val raw = file.readBytes()
        assertFalse((0..raw.size - 8).any { raw.copyOfRange(it, it + 8).contentEquals(secret.copyOf(8)) })
        assertEquals(setOf("mine"), FakeKeystore.keys.keys)
        assertEquals(32, FakeKeystore.keys.getValue("mine").encoded.size)
    }

    @Test
    fun `another secret is made after it was deleted, with its key`() {
        val before = secrets.secret()
        secrets.delete()
        assertFalse(file.exists())
        assertEquals(emptySet<String>(), FakeKeystore.keys.keys)
        assertFalse(before.contentEquals(secrets.secret()))
    }

    @Test
    fun `a key that is gone is named, with what to do, and the file stays`() {
        secrets.secret()
        FakeKeystore.keys.clear()
        val message = assertReason(Reason.DAMAGED) { secrets.secret() }
        assertTrue(message, "the key 'mine' of $file is not in the Android keystore" in message)
        assertTrue(message, message.endsWith("erase this client (eraseHere) to enrol as a new one"))
        assertTrue(file.exists())
    }

    @Test
    fun `another key or a damaged file is named`() {
        secrets.secret()
        val whole = file.readBytes()
        file.writeBytes(whole.copyOf().also { it[20] = (it[20] + 1).toByte() })
        assertTrue("AEADBadTagException" in assertReason(Reason.DAMAGED) { secrets.secret() })
        for (wrong in listOf(ByteArray(0), whole.copyOf(60), byteArrayOf(2) + whole.drop(1))) {
            file.writeBytes(wrong)
            val message = assertReason(Reason.DAMAGED) { secrets.secret() }
            assertTrue(message, "must hold version 1 of a secret in 61 bytes" in message)
        }
        file.writeBytes(whole)
        FakeKeystore.keys["mine"] = SecretKeySpec(ByteArray(32), "AES")
        assertTrue("AEADBadTagException" in assertReason(Reason.DAMAGED) { secrets.secret() })
    }

    @Test
    fun `a keystore that cannot be used is named`() {
        secrets.secret()
        FakeKeystore.keys["mine"] =
            object : SecretKey {
                override fun getAlgorithm() = "AES"

                override fun getFormat() = null

                override fun getEncoded() = throw InvalidKeyException("the key was invalidated")
            }
        assertReason(Reason.NOT_WRITABLE) { secrets.secret() }
        FakeKeystore.isBroken = true
        val message = assertReason(Reason.NOT_WRITABLE) { secrets.delete() }
        assertTrue(message, "cannot delete the key of" in message)
        Security.removeProvider("AndroidKeyStore")
        assertReason(Reason.NOT_WRITABLE) { secrets.secret() }
    }

    @Test
    fun `a keystore that is away for a while does no lasting harm`() {
        FakeKeystore.isAway = true
        val unmade = assertReason(Reason.NOT_WRITABLE) { secrets.secret() }
        assertTrue(unmade, "cannot encrypt the secret $file" in unmade)
        assertFalse(file.exists())
        FakeKeystore.isAway = false
        val secret = secrets.secret()
        FakeKeystore.isAway = true
        val unread = assertReason(Reason.NOT_WRITABLE) { secrets.secret() }
        assertTrue(unread, "ProviderException: the keystore's process has ended" in unread)
        FakeKeystore.isAway = false
        assertArrayEquals(secret, secrets.secret())
    }
}
