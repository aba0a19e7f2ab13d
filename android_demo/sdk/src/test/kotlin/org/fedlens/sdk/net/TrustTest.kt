package org.fedlens.sdk.net

import kotlinx.coroutines.test.TestScope
import kotlinx.coroutines.test.runTest
import okhttp3.CertificatePinner
import okhttp3.mockwebserver.MockResponse
import okhttp3.mockwebserver.MockWebServer
import okhttp3.mockwebserver.SocketPolicy
import okhttp3.tls.HandshakeCertificates
import okhttp3.tls.HeldCertificate
import org.fedlens.sdk.TransportException
import org.fedlens.sdk.TransportException.Reason
import org.junit.Assert.assertEquals
import org.junit.Assert.assertNull
import org.junit.Assert.assertThrows
import org.junit.Assert.assertTrue
import org.junit.Rule
import org.junit.Test
import org.junit.rules.TemporaryFolder
import java.io.File
import java.util.concurrent.TimeUnit

/** The servers that receive the secret. Every refusal happens in the handshake: the server has seen no request. */
class TrustTest {
    @get:Rule
    val folder = TemporaryFolder()

    private val authority = HeldCertificate.Builder().certificateAuthority(0).build()
    private val good = issue().addSubjectAlternativeName("127.0.0.1").build()
    private val ca: File by lazy { pem("ca.pem", authority.certificatePem()) }

    private fun issue() = HeldCertificate.Builder().signedBy(authority)

    private fun pem(
        name: String,
        text: String,
    ) = File(folder.root, name).apply { writeText(text) }

    private fun secure(
        certificate: HeldCertificate,
        response: MockResponse = reply(FINISHED),
    ): MockWebServer {
        val isIssued = certificate.certificate.issuerX500Principal == authority.certificate.subjectX500Principal
        val above = if (isIssued) arrayOf(authority.certificate) else emptyArray()
        val shown = HandshakeCertificates.Builder().heldCertificate(certificate, *above).build()
        return serving(response).apply { useHttps(shown.sslSocketFactory(), false) }
    }

    private val MockWebServer.secureAddress get() = "https://127.0.0.1:$port"

    private suspend fun TestScope.refusalBy(
        server: MockWebServer,
        ca: File? = this@TrustTest.ca,
        pins: List<String> = emptyList(),
    ): TransportException {
        val error = failureOf { transportTo(server.secureAddress, pins = pins, ca = ca).use { it.checkIn(CHECK_IN) } }
        assertNull(server.takeRequest(0, TimeUnit.SECONDS))
        return error
    }

    @Test
    fun `a private authority is trusted if given, and else the client stops`() =
        runTest {
            secure(good).use { server ->
                assertEquals(FINISHED, transportTo(server.secureAddress, ca = ca).use { it.checkIn(CHECK_IN) })
                assertEquals("HTTP/1.1", server.takeRequest().requestLine.substringAfterLast(' '))
            }
            secure(good).use { server ->
                val error = refusalBy(server, ca = null)
                assertEquals(Reason.UNTRUSTED, error.reason)
                assertTrue(error.message, "the certificate of 127.0.0.1 is not trusted: " in error.message.orEmpty())
                assertTrue(error.message, error.message.orEmpty().endsWith("; give its CA"))
            }
        }

    @Test
    fun `a self-signed certificate, one for another host and one of another time are refused`() =
        runTest {
            val now = System.currentTimeMillis()
            val day = TimeUnit.DAYS.toMillis(1)
            val refused =
                mapOf(
                    HeldCertificate.Builder().addSubjectAlternativeName("127.0.0.1").build() to "; give its CA",
                    issue().addSubjectAlternativeName("fl.example.org").build() to "it is for another host",
                    issue().commonName("127.0.0.1").build() to "it is for another host",
                    issue()
                        .addSubjectAlternativeName("127.0.0.1")
                        .validityInterval(now - 2 * day, now - day)
                        .build() to "it is not valid today, check this device's clock",
                    issue()
                        .addSubjectAlternativeName("127.0.0.1")
                        .validityInterval(now + day, now + 2 * day)
                        .build() to "it is not valid today, check this device's clock",
                )
            for ((certificate, says) in refused) {
                secure(certificate).use { server ->
                    val error = refusalBy(server)
                    assertEquals(Reason.UNTRUSTED, error.reason)
                    assertTrue(error.message, says in error.message.orEmpty())
                    assertTrue(error.message, '\n' !in error.message.orEmpty())
                }
            }
        }

    @Test
    fun `a pinned key is enough, the server's own or that of the one who vouches for it`() =
        runTest {
            for (certificate in listOf(good, authority)) {
                val pins = listOf(OTHER_PIN, CertificatePinner.pin(certificate.certificate))
                secure(good).use { server ->
                    val transport = transportTo(server.secureAddress, pins = pins, ca = ca)
                    assertEquals(FINISHED, transport.use { it.checkIn(CHECK_IN) })
                }
            }
        }

    @Test
    fun `a server without a pinned key is refused with its host, its keys and the expected ones`() =
        runTest {
            secure(good).use { server ->
                val error = refusalBy(server, pins = listOf(OTHER_PIN))
                val found = listOf(good, authority).joinToString { CertificatePinner.pin(it.certificate) }
                assertEquals(Reason.UNTRUSTED, error.reason)
                assertEquals(
                    "127.0.0.1 shows other public keys than the pinned ones: found $found; expected $OTHER_PIN; " +
                        "check whether the server's key was changed on purpose",
                    error.message,
                )
            }
        }

    @Test
    fun `a pin does not make up for a certificate that nobody vouches for`() =
        runTest {
            val alone = HeldCertificate.Builder().addSubjectAlternativeName("127.0.0.1").build()
            secure(alone).use { server ->
                val error = refusalBy(server, pins = listOf(CertificatePinner.pin(alone.certificate)))
                assertEquals(Reason.UNTRUSTED, error.reason)
            }
        }

    @Test
    fun `pins that are none, or that nothing can be compared with, are refused at once`() =
        runTest {
            val short = "sha1/2jmj7l5rSw0yVb/vlWAYkK/YBwk="
            for (pin in listOf("", "sha256/", "sha256/AAAA", short, "*", "${OTHER_PIN}AAAA", OTHER_PIN.drop(7))) {
                val error = failureOf { transportTo("https://fl.example.org", pins = listOf(OTHER_PIN, pin)) }
                assertEquals(Reason.UNTRUSTED, error.reason)
                assertTrue(error.message, error.message.orEmpty().startsWith("'$pin' is not a pin"))
            }
            val plain = failureOf { transportTo("http://127.0.0.1:1", pins = listOf(OTHER_PIN)) }
            assertEquals(Reason.UNTRUSTED, plain.reason)
        }

    @Test
    fun `a file that holds no certificates is named`() {
        val files =
            listOf(
                pem("empty.pem", ""),
                pem("text.pem", "not a certificate"),
                pem("damaged.pem", authority.certificatePem().replace("MII", "MIJ")),
                pem("key.pem", authority.privateKeyPkcs8Pem()),
                pem("cut.pem", authority.certificatePem().dropLast(40)),
                pem("long.pem", "x".repeat(2 shl 20)),
                File(folder.root, "missing.pem"),
                folder.root,
            )
        for (file in files) {
            val error =
                assertThrows("$file", TransportException::class.java) {
                    HttpTransport("https://127.0.0.1", SECRET, ca = file)
                }
            assertEquals(Reason.UNTRUSTED, error.reason)
            assertTrue(error.message, error.message.orEmpty().startsWith("$file cannot be read as certificates (PEM)"))
        }
    }

    @Test
    fun `all certificates of a file count, whatever stands between them`() =
        runTest {
            val another = HeldCertificate.Builder().certificateAuthority(0).build()
            val first = "# two\n" + another.certificatePem() + another.privateKeyPkcs8Pem()
            val file = pem("two.pem", first + "\r\n" + authority.certificatePem())
            secure(good).use { server ->
                assertEquals(FINISHED, transportTo(server.secureAddress, ca = file).use { it.checkIn(CHECK_IN) })
            }
        }

    @Test
    fun `plain HTTP at the port, or a handshake that fails, is tried again, as a hotel's network may be to blame`() =
        runTest {
            val plain =
                RawServer { connection ->
                    connection.getInputStream().read(ByteArray(4_096))
                    connection.getOutputStream().write("HTTP/1.1 400 Bad Request\r\n\r\n".toByteArray())
                }
            val failing = secure(good, MockResponse().setSocketPolicy(SocketPolicy.FAIL_HANDSHAKE))
            for (address in listOf(plain.url.replace("http:", "https:"), failing.secureAddress)) {
                val error = failureOf { transportTo(address, ONCE, ca = ca).use { it.checkIn(CHECK_IN) } }
                assertEquals(Reason.UNREACHABLE, error.reason)
                assertTrue(error.message, "connection failed: " in error.message.orEmpty())
            }
            plain.close()
            failing.close()
        }

    private companion object {
        val OTHER_PIN = "sha256/${"A".repeat(43)}="
    }
}
