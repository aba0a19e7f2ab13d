package org.fedlens.app

import org.fedlens.sdk.Publisher
import org.fedlens.sdk.StatementException
import java.net.URI
import java.net.URISyntaxException
import java.net.URLDecoder
import java.security.cert.CertificateException
import java.security.cert.CertificateFactory
import java.util.Base64

/**
 * An invitation from an operator to join a federation, as a link or as the content of a QR code: the page `/join` of
 * the server, `https://fl.example.org/join#token=…&pin=sha256%2F…&ca=…&publisher=…&operator=…&purpose=…`, where all but
 * `token` may be absent, and `pin`, `ca` and `publisher` repeated. docs/android.md describes it, and `fedlens link`
 * prints it.
 *
 * @property server Address of the server, without a trailing slash.
 * @property token Enrolment token.
 * @property pins Public keys, one of which the server's certificate chain must hold, as `sha256/` and Base64; empty:
 *     any key.
 * @property ca Certificates to trust instead of the phone's own, each as DER in base64url; empty: the phone's own.
 * @property publishers Keys of those whose signed bundles may run here, each as SubjectPublicKeyInfo (DER) in base64url;
 *     empty: none.
 * @property operator Name of whoever runs the server, as the link says; may be empty.
 * @property purpose What the models are for, as the link says; may be empty.
 */
internal data class EnrolmentLink(
    val server: String,
    val token: String,
    val pins: List<String>,
    val ca: List<String> = emptyList(),
    val publishers: List<String> = emptyList(),
    val operator: String = "",
    val purpose: String = "",
) {
    /** [ca] as the content of a PEM file; null if there is none. */
    val pem: String?
        get() = if (ca.isEmpty()) null else ca.joinToString("") { pem("CERTIFICATE", it) }

    /** [publishers] as the SDK takes them. */
    val keys: List<Publisher> get() = publishers.map(::publisher)

    /** The problem with a text that should be a link. */
    enum class Problem {
        EMPTY,
        NOT_A_LINK,
        OTHER_LINK,
        SERVER_UNREADABLE,
        SERVER_NOT_SECURE,
        SERVER_WITH_MORE,
        TOKEN_MISSING,
        TOKEN_WITH_SPACES,
        PIN_UNREADABLE,
        CA_UNREADABLE,
        PUBLISHER_UNREADABLE,
        GIVEN_TWICE,
    }

    /** The result of reading a text. */
    sealed interface Reading {
        data class Good(
            val link: EnrolmentLink,
        ) : Reading

        /** @property found The part of the text that is wrong; may be empty. */
        data class Bad(
            val problem: Problem,
            val found: String = "",
        ) : Reading
    }

    companion object {
        private const val PAGE = "/join"
        private const val PIN = "sha256/"
        private const val PIN_BYTES = 32
        private val OWN_MACHINE = setOf("localhost", "127.0.0.1")
        private val SPACES = Regex("\\s+")

        /** The link in a text; null if there is none, or a bad one. */
        fun of(typed: String): EnrolmentLink? = (read(typed) as? Reading.Good)?.link

        /** Read typed or pasted text. Spaces and line breaks, such as a chat inserts, are ignored. */
        fun read(typed: String): Reading {
            val text = typed.replace(SPACES, "")
            if (text.isEmpty()) return Reading.Bad(Problem.EMPTY)
            val address = text.substringBefore('#')
            val page = address.substringBefore('?').trimEnd('/')
            if (!page.contains("://")) return Reading.Bad(Problem.NOT_A_LINK, text.take(MOST_SHOWN))
            if (!page.endsWith(PAGE)) return Reading.Bad(Problem.OTHER_LINK, page.take(MOST_SHOWN))
            val values = values(text.substringAfter('#', ""))
            if (values["token"].orEmpty().size > 1) return Reading.Bad(Problem.GIVEN_TWICE, "token")
            val (scheme, place) = page.removeSuffix(PAGE).trimEnd('/').split(':', limit = 2)
            val server = "${scheme.lowercase()}:$place"
            val token = values["token"]?.single().orEmpty()
            val pins = values["pin"].orEmpty()
            val ca = values["ca"].orEmpty()
            val publishers = values["publisher"].orEmpty()
            val wrong =
                wrongServer(server)
                    ?: Reading.Bad(Problem.SERVER_WITH_MORE, address.take(MOST_SHOWN)).takeIf { '?' in address }
                    ?: wrongToken(token) ?: pins.firstNotNullOfOrNull(::wrongPin)
                    ?: ca.firstNotNullOfOrNull(::wrongCertificate)
                    ?: publishers.firstNotNullOfOrNull(::wrongPublisher)
            val operator = plain(values["operator"], MOST_OF_OPERATOR)
            val purpose = plain(values["purpose"], MOST_OF_PURPOSE)
            return wrong ?: Reading.Good(EnrolmentLink(server, token, pins, ca, publishers, operator, purpose))
        }

        private const val MOST_SHOWN = 60
        private const val MOST_PORT = 65_535
        private const val MOST_OF_OPERATOR = 100
        private const val MOST_OF_PURPOSE = 500
        private val UNSEEN = Regex("[\\x00-\\x20\\x7f-\\xa0]+")

        /** The only one of these texts on one line, of at most [most] characters; empty if there is none. */
        private fun plain(
            texts: List<String>?,
            most: Int,
        ): String {
            val text = texts?.singleOrNull().orEmpty().replace(UNSEEN, " ").trim(' ')
            val count = text.codePointCount(0, text.length)
            return text.substring(0, text.offsetByCodePoints(0, minOf(count, most)))
        }

        private fun values(fragment: String): Map<String, List<String>> =
            fragment
                .split('&')
                .filter { it.isNotEmpty() }
                .groupBy({ decoded(it.substringBefore('=')) }, { decoded(it.substringAfter('=', "")) })

        // A plus is not a space here: it is part of the Base64 of pins that were pasted without URL encoding.
        private fun decoded(text: String): String =
            try {
                URLDecoder.decode(text.replace("+", "%2B"), "UTF-8")
            } catch (_: IllegalArgumentException) {
                text
            }

        private fun wrongServer(server: String): Reading.Bad? {
            val address =
                try {
                    URI(server)
                } catch (_: URISyntaxException) {
                    return Reading.Bad(Problem.SERVER_UNREADABLE, server)
                }
            val isOwnMachine = address.scheme == "http" && address.host in OWN_MACHINE
            return when {
                address.host == null || !isPort(address.port) -> Reading.Bad(Problem.SERVER_UNREADABLE, server)
                address.scheme != "https" && !isOwnMachine -> Reading.Bad(Problem.SERVER_NOT_SECURE, server)
                address.rawUserInfo != null -> Reading.Bad(Problem.SERVER_WITH_MORE, server)
                else -> null
            }
        }

        /** URI takes any number for a port; -1 is none. */
        private fun isPort(port: Int) = port == -1 || port in 1..MOST_PORT

        private fun wrongToken(token: String): Reading.Bad? =
            when {
                token.isEmpty() -> Reading.Bad(Problem.TOKEN_MISSING)
                token.any { it <= ' ' || it > '~' } -> Reading.Bad(Problem.TOKEN_WITH_SPACES)
                else -> null
            }

        private fun wrongPin(pin: String): Reading.Bad? {
            val bytes =
                try {
                    Base64.getDecoder().decode(pin.removePrefix(PIN))
                } catch (_: IllegalArgumentException) {
                    ByteArray(0)
                }
            return Reading.Bad(Problem.PIN_UNREADABLE, pin).takeIf { !pin.startsWith(PIN) || bytes.size != PIN_BYTES }
        }

        private fun wrongCertificate(text: String): Reading.Bad? =
            try {
                val certificate = Base64.getUrlDecoder().decode(text)
                CertificateFactory.getInstance("X.509").generateCertificate(certificate.inputStream())
                null
            } catch (_: IllegalArgumentException) {
                Reading.Bad(Problem.CA_UNREADABLE)
            } catch (_: CertificateException) {
                Reading.Bad(Problem.CA_UNREADABLE)
            }

        private fun wrongPublisher(text: String): Reading.Bad? =
            try {
                publisher(text)
                null
            } catch (_: IllegalArgumentException) {
                Reading.Bad(Problem.PUBLISHER_UNREADABLE)
            } catch (_: StatementException) {
                Reading.Bad(Problem.PUBLISHER_UNREADABLE)
            }

        private fun publisher(text: String) = Publisher.of(pem("PUBLIC KEY", text))

        /** DER in base64url as PEM. */
        private fun pem(
            what: String,
            text: String,
        ): String {
            val der = Base64.getMimeEncoder().encodeToString(Base64.getUrlDecoder().decode(text))
            return "-----BEGIN $what-----\n$der\n-----END $what-----\n"
        }
    }
}
