package org.fedlens.sdk.net

import okhttp3.HttpUrl
import okhttp3.HttpUrl.Companion.toHttpUrl
import org.fedlens.sdk.TransportException
import org.fedlens.sdk.TransportException.Reason

private const val LIKE = "it looks like https://host:8443"
private val IPV4 = Regex("""(\d{1,3})\.(\d{1,3})\.(\d{1,3})\.(\d{1,3})""")

/** Addresses of servers that may receive the secret. */
internal object ServerAddress {
    /**
     * Parse an address such as `https://fl.example.org:8443`.
     *
     * @throws TransportException `UNTRUSTED`: it is neither an HTTPS address nor a plain HTTP address of this machine.
     */
    fun parse(server: String): HttpUrl {
        val scheme = server.substringBefore("://", "").lowercase()
        val authority = server.substringAfter("://").substringBefore('/')
        if (scheme !in setOf("https", "http") || authority.isEmpty() || server.any { it == '?' || it == '#' }) {
            throw untrusted("server '$server' is not an address; $LIKE")
        }
        // Checked first, so that no message repeats the password.
        if ('@' in authority) throw untrusted("the server's address must not hold a user or a password")
        val url =
            try {
                server.trimEnd('/').toHttpUrl()
            } catch (error: IllegalArgumentException) {
                throw untrusted("server '$server' is not an address: ${error.message}; $LIKE")
            }
        if (!url.isHttps && !isThisMachine(url.host)) {
            throw untrusted("server '$server': plain HTTP would show the secret to others on the way; use https://")
        }
        return url
    }

    /** True if [host] names this machine without a name server. */
    private fun isThisMachine(host: String): Boolean {
        if (host == "localhost" || host == "::1") return true
        val numbers = IPV4.matchEntire(host)?.groupValues?.drop(1) ?: return false
        return numbers.first() == "127" && numbers.all { it == it.toInt().toString() && it.toInt() <= LARGEST_BYTE }
    }

    private fun untrusted(message: String) = TransportException(Reason.UNTRUSTED, message)

    private const val LARGEST_BYTE = 255
}
