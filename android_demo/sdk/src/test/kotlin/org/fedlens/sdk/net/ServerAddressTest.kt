package org.fedlens.sdk.net

import org.fedlens.sdk.TransportException
import org.junit.Assert.assertEquals
import org.junit.Assert.assertFalse
import org.junit.Assert.assertThrows
import org.junit.Assert.assertTrue
import org.junit.Test

class ServerAddressTest {
    @Test
    fun `https addresses, and plain ones of this machine, are taken`() {
        val addresses =
            mapOf(
                "https://fl.example.org" to "https://fl.example.org/",
                "HTTPS://FL.example.org:8443/" to "https://fl.example.org:8443/",
                "https://fl.example.org/fedlens/" to "https://fl.example.org/fedlens",
                "https://[2001:db8::1]:8443" to "https://[2001:db8::1]:8443/",
                "http://localhost:8080" to "http://localhost:8080/",
                "http://127.0.0.1:8080" to "http://127.0.0.1:8080/",
                "http://127.9.8.7" to "http://127.9.8.7/",
                "http://[::1]:8080" to "http://[::1]:8080/",
                "http://[::ffff:127.0.0.1]:8080" to "http://127.0.0.1:8080/",
            )
        for ((given, parsed) in addresses) assertEquals(parsed, ServerAddress.parse(given).toString())
    }

    @Test
    fun `addresses that the secret must not go to are refused`() {
        val refused =
            mapOf(
                "" to "not an address",
                "fl.example.org" to "not an address",
                "ftp://fl.example.org" to "not an address",
                "https://" to "not an address",
                "https:///v1" to "not an address",
                "https://[::1" to "not an address",
                "https://fl.example.org:99999" to "port",
                "https://fl.example.org:x" to "port",
                "https://fl.example.org/?a=b" to "not an address",
                "https://fl.example.org/#x" to "not an address",
                "https://a b" to "not an address",
                "http://fl.example.org:8443" to "plain HTTP would show the secret",
                "http://127.0.0.1.example.org" to "plain HTTP would show the secret",
                "http://localhost.example.org" to "plain HTTP would show the secret",
                "http://127.0.0.999" to "plain HTTP would show the secret",
                "http://127.1" to "plain HTTP would show the secret",
                "http://10.0.2.2:8443" to "plain HTTP would show the secret",
                "http://0.0.0.0:8443" to "plain HTTP would show the secret",
                "http://[2001:db8::1]" to "plain HTTP would show the secret",
            )
        for ((given, says) in refused) {
            val error = assertThrows(given, TransportException::class.java) { ServerAddress.parse(given) }
            assertEquals(TransportException.Reason.UNTRUSTED, error.reason)
            assertTrue("$given: ${error.message}", says in error.message.orEmpty())
        }
    }

    @Test
    fun `a password in an address is refused and not repeated`() {
        for (address in listOf("https://me:hush@fl.example.org", "https://me:hush@fl.example.org:99999")) {
            val error = assertThrows(TransportException::class.java) { ServerAddress.parse(address) }
            assertEquals("the server's address must not hold a user or a password", error.message)
            assertFalse("hush" in error.toString())
        }
    }
}
