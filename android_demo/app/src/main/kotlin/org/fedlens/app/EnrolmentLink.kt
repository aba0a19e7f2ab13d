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
 * An invitation from an operator to join a federation, as a link or as the content of a QR code:
 * `fedlens://enrol?server=https%3A%2F%2Ffl.example.org&token=…&pin=sha256%2F…&ca=…&publisher=…&operator=…&purpose=…`,
 * where all but `server` and `token` may be absent, and `pin`, `ca` and `publisher` repeated. docs/android.md describes
 * it, and `fedlens link` prints it.
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
        SERVER_MISSING,
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
        private const val BEGINNING = "fedlens://enrol"
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
            val query = text.indexOf('?')
            val beginning = (if (query < 0) text else text.substring(0, query)).trimEnd('/')
            if (!text.contains("://")) return Reading.Bad(Problem.NOT_A_LINK, text.take(MOST_SHOWN))
            if (!beginning.equals(BEGINNING, ignoreCase = true)) {
                return Reading.Bad(Problem.OTHER_LINK, beginning.take(MOST_SHOWN))
            }
            val values = if (query < 0) emptyMap() else values(text.substring(query + 1))
            for (name in listOf("server", "token")) {
                if (values[name].orEmpty().size > 1) return Reading.Bad(Problem.GIVEN_TWICE, name)
            }
            val server = values["server"]?.single().orEmpty().trimEnd('/')
            val token = values["token"]?.single().orEmpty()
            val pins = values["pin"].orEmpty()
            val ca = values["ca"].orEmpty()
            val publishers = values["publisher"].orEmpty()
            val wrong =
                wrongServer(server) ?: wrongToken(token) ?: pins.firstNotNullOfOrNull(::wrongPin)
                    ?: ca.firstNotNullOfOrNull(::wrongCertificate)
                    ?: publishers.firstNotNullOfOrNull(::wrongPublisher)
            val operator = plain(values["operator"], MOST_OF_OPERATOR)
            val purpose = plain(values["purpose"], MOST_OF_PURPOSE)
            return wrong ?: Reading.Good(EnrolmentLink(server, token, pins, ca, publishers, operator, purpose))
        }

        private const val MOST_SHOWN = 60
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

        private fun values(query: String): Map<String, List<String>> =
            query
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
            if (server.isEmpty()) return Reading.Bad(Problem.SERVER_MISSING)
            val address =
                try {
                    URI(server)
                } catch (_: URISyntaxException) {
                    return Reading.Bad(Problem.SERVER_UNREADABLE, server)
                }
            val scheme = address.scheme?.lowercase()
            val isOwnMachine = scheme == "http" && address.host in OWN_MACHINE
            return when {
                scheme == null || address.host == null -> Reading.Bad(Problem.SERVER_UNREADABLE, server)
                scheme != "https" && !isOwnMachine -> Reading.Bad(Problem.SERVER_NOT_SECURE, server)
                address.rawUserInfo != null || address.rawQuery != null || address.rawFragment != null ->
                    Reading.Bad(Problem.SERVER_WITH_MORE, server)
                else -> null
            }
        }

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
