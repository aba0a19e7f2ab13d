package org.fedlens.sdk.net

import okhttp3.HttpUrl
import okhttp3.HttpUrl.Companion.toHttpUrl
import org.fedlens.sdk.TransportException
import org.fedlens.sdk.TransportException.Reason

private const val LIKE = "it looks like https://host:8443"
private val IPV4 = Regex("""(\d{1,3})\.(\d{1,3})\.(\d{1,3})\.(\d{1,3})""")

/** The address of a server, to which the secret may go. */
internal object ServerAddress {
    /**
     * The address in [server], such as `https://fl.example.org:8443`, without what would follow it.
     *
     * @throws TransportException `UNTRUSTED`: no HTTPS address, nor a plain one of this machine.
     */
    fun parse(server: String): HttpUrl {
        val scheme = server.substringBefore("://", "").lowercase()
        val authority = server.substringAfter("://").substringBefore('/')
        if (scheme !in setOf("https", "http") || authority.isEmpty() || server.any { it == '?' || it == '#' }) {
            throw untrusted("server '$server' is no address; $LIKE")
        }
        // Before anything that would repeat the password in its text.
        if ('@' in authority) throw untrusted("the server's address must not hold a user or a password")
        val url =
            try {
                server.trimEnd('/').toHttpUrl()
            } catch (error: IllegalArgumentException) {
                throw untrusted("server '$server' is no address: ${error.message}; $LIKE")
            }
        if (!url.isHttps && !isThisMachine(url.host)) {
            throw untrusted("server '$server': plain HTTP would show the secret to others on the way; use https://")
        }
        return url
    }

    /** Whether [host] is this machine by its name alone, whatever a name server says. */
    private fun isThisMachine(host: String): Boolean {
        if (host == "localhost" || host == "::1") return true
        val numbers = IPV4.matchEntire(host)?.groupValues?.drop(1) ?: return false
        return numbers.first() == "127" && numbers.all { it == it.toInt().toString() && it.toInt() <= LARGEST_BYTE }
    }

    private fun untrusted(message: String) = TransportException(Reason.UNTRUSTED, message)

    private const val LARGEST_BYTE = 255
}
