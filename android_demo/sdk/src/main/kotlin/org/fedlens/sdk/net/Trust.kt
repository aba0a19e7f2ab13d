package org.fedlens.sdk.net

import okhttp3.CertificatePinner
import okhttp3.HttpUrl
import okio.ByteString.Companion.decodeBase64
import org.fedlens.sdk.TransportException
import org.fedlens.sdk.TransportException.Reason
import java.io.ByteArrayInputStream
import java.io.File
import java.io.IOException
import java.security.KeyStore
import java.security.cert.CertificateException
import java.security.cert.CertificateExpiredException
import java.security.cert.CertificateFactory
import java.security.cert.CertificateNotYetValidException
import javax.net.ssl.SSLException
import javax.net.ssl.SSLPeerUnverifiedException
import javax.net.ssl.TrustManagerFactory
import javax.net.ssl.X509TrustManager

private const val MAX_CA_BYTES = 1L shl 20
private const val PIN_PREFIX = "sha256/"
private const val PIN_BYTES = 32
private const val PIN_FAILURE = "Certificate pinning failure!"
private const val PIN_EXPECTATION = "Pinned certificates for"
private val CERTIFICATE = Regex("-----BEGIN CERTIFICATE-----[^-]*-----END CERTIFICATE-----")
private val PIN = Regex("sha256/[A-Za-z0-9+/]{43}=")
private val SPACE = Regex("\\s+")

/** The checks of a server's identity. */
internal object Trust {
    /**
     * A trust manager that accepts only the certificates in [ca] (PEM).
     *
     * @throws TransportException `UNTRUSTED`: the file cannot be read as certificates.
     */
    fun only(ca: File): X509TrustManager {
        val store = KeyStore.getInstance(KeyStore.getDefaultType())
        try {
            if (ca.length() > MAX_CA_BYTES) throw CertificateException("it has more than $MAX_CA_BYTES bytes")
            val text = ca.readBytes().toString(Charsets.ISO_8859_1)
            val factory = CertificateFactory.getInstance("X.509")
            store.load(null, null)
            // One by one: the factory fails on text between certificates, such as a key or a comment.
            CERTIFICATE.findAll(text).forEachIndexed { i, block ->
                val raw = block.value.toByteArray(Charsets.ISO_8859_1)
                store.setCertificateEntry("$i", factory.generateCertificate(ByteArrayInputStream(raw)))
            }
            if (store.size() == 0) throw CertificateException("it holds none")
        } catch (error: IOException) {
            throw unreadable(ca, error)
        } catch (error: CertificateException) {
            throw unreadable(ca, error)
        }
        val managers = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm())
        managers.init(store)
        return managers.trustManagers.filterIsInstance<X509TrustManager>().single()
    }

    /**
     * A pinner that requires one of [pins] from the server at [address], in addition to a trusted certificate.
     *
     * @param pins `sha256/` and the Base64 of the SHA-256 of a public key (SubjectPublicKeyInfo) in the server's
     *     certificate chain. Empty: no requirement.
     * @throws TransportException `UNTRUSTED`: a pin is malformed, or plain HTTP has no certificate to compare with.
     */
    fun pinned(
        address: HttpUrl,
        pins: List<String>,
    ): CertificatePinner {
        if (pins.isNotEmpty() && !address.isHttps) {
            throw untrusted("there is no certificate to pin on plain HTTP; use https:// or leave out the pins")
        }
        val builder = CertificatePinner.Builder()
        for (pin in pins) {
            val hash = if (pin.startsWith(PIN_PREFIX)) pin.substring(PIN_PREFIX.length).decodeBase64() else null
            if (hash?.size != PIN_BYTES) {
                throw untrusted("'$pin' is not a pin; a pin is sha256/ and the Base64 of $PIN_BYTES bytes")
            }
            builder.add(address.host, pin)
        }
        return builder.build()
    }

    /**
     * The failure if [error] concerns the server's identity; null otherwise, as for an interrupted handshake.
     *
     * @param pins The configured pins.
     */
    fun refusal(
        error: SSLException,
        host: String,
        pins: List<String>,
    ): TransportException? {
        val causes = generateSequence<Throwable>(error) { it.cause }.take(MOST_CAUSES).toList()
        val why = error.message.orEmpty()
        if (error is SSLPeerUnverifiedException && why.startsWith(PIN_FAILURE)) {
            val found = PIN.findAll(why.substringBefore(PIN_EXPECTATION)).joinToString { it.value }
            val expected = pins.joinToString()
            return untrusted(
                "$host shows other public keys than the pinned ones: found $found; expected $expected; " +
                    "check whether the server's key was changed on purpose",
                error,
            )
        }
        if (error !is SSLPeerUnverifiedException && causes.none { it is CertificateException }) return null
        val date = causes.any { it is CertificateExpiredException || it is CertificateNotYetValidException }
        val said = (if (date) causes.last().message.orEmpty() else why).replace(SPACE, " ")
        val help =
            when {
                date -> "it is not valid today, check this device's clock"
                error is SSLPeerUnverifiedException -> "it is for another host, check the address"
                else -> "give its CA"
            }
        return untrusted("the certificate of $host is not trusted: $said; $help", error)
    }

    private fun unreadable(
        ca: File,
        error: Exception,
    ) = untrusted("$ca cannot be read as certificates (PEM): ${error.message}", error)

    private fun untrusted(
        message: String,
        cause: Throwable? = null,
    ) = TransportException(Reason.UNTRUSTED, message, cause = cause)

    private const val MOST_CAUSES = 10
}
