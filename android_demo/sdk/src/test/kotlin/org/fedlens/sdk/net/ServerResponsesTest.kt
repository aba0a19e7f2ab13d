package org.fedlens.sdk.net

import com.google.protobuf.MessageLite
import kotlinx.coroutines.test.runTest
import org.fedlens.proto.v1.Error
import org.fedlens.proto.v1.Retry
import org.fedlens.sdk.TransportException
import org.fedlens.sdk.TransportException.Reason.BAD_ANSWER
import org.fedlens.sdk.TransportException.Reason.REFUSED
import org.fedlens.sdk.TransportException.Reason.UNREACHABLE
import org.fedlens.sdk.Wire
import org.junit.Assert.assertEquals
import org.junit.Assert.assertTrue
import org.junit.Test

/** Responses of all kinds: the client always ends with a named error, never with another exception. */
class ServerResponsesTest {
    private class Case(
        val response: ByteArray,
        val reason: TransportException.Reason,
        val says: String,
        val code: String = "",
    )

    @Test
    fun `every refusal of the protocol is raised with its code and not repeated`() =
        ends(
            listOf(
                400 to "malformed",
                401 to "unauthorised",
                403 to "forbidden",
                404 to "unknown",
                409 to "round-closed",
                409 to "update-differs",
                409 to "already-failed",
                413 to "too-large",
                415 to "wrong-media-type",
                416 to "wrong-range",
                422 to "update-invalid",
            ).associate { (status, code) ->
                "$status $code" to
                    Case(
                        http(status, errorOf(code, "so it is", Retry.RETRY_NEVER)),
                        REFUSED,
                        "the server refuses ($code): so it is",
                        code,
                    )
            } +
                mapOf(
                    "a retry that is unset" to
                        Case(
                            http(409, errorOf("new-code", "x", Retry.RETRY_UNSPECIFIED)),
                            REFUSED,
                            "(new-code)",
                            "new-code",
                        ),
                    "a retry that this version does not know" to
                        Case(
                            http(409, Error.newBuilder().setCode("later").setRetryValue(9).build()),
                            REFUSED,
                            "(later)",
                            "later",
                        ),
                    "a refusal without any word" to
                        Case(http(400, Error.getDefaultInstance()), REFUSED, "the server refuses ()"),
                ),
        )

    @Test
    fun `everything that may pass is tried again until the time is over`() =
        ends(
            listOf(429 to "slow-down", 500 to "internal", 503 to "unavailable", 507 to "storage-full")
                .associate { (status, code) ->
                    "$status $code" to
                        Case(
                            http(status, errorOf(code, "wait", Retry.RETRY_LATER, 5)),
                            UNREACHABLE,
                            "given up after 1 attempts in 0.0 s: $code: wait",
                        )
                } +
                listOf(429, 500, 502, 503, 504).associate {
                    "$it of a proxy" to
                        Case(html(it), UNREACHABLE, "status $it from something between here and the server")
                } +
                mapOf(
                    "no answer" to Case(ByteArray(0), UNREACHABLE, "connection failed"),
                    "half a status line" to Case(text("HTTP/1.1 20"), UNREACHABLE, "connection failed"),
                    "no end of headers" to Case(text("HTTP/1.1 200 OK\r\nA: b\r\n"), UNREACHABLE, "connection failed"),
                    "headers of 300 KiB" to
                        Case(
                            http(200, FINISHED, "X-Long: ${"x".repeat(300 shl 10)}"),
                            UNREACHABLE,
                            "connection failed",
                        ),
                    "a hundred thousand headers" to
                        Case(
                            http(200, FINISHED, (1..100_000).joinToString("\r\n") { "X-$it: 1" }),
                            UNREACHABLE,
                            "connection failed",
                        ),
                    "a body cut short" to
                        Case(
                            http(200, FINISHED).run { copyOf(size - 1) },
                            UNREACHABLE,
                            "connection failed: unexpected end of stream",
                        ),
                    "chunks cut short" to
                        Case(chunked("40\r\nabc"), UNREACHABLE, "connection failed: unexpected end of stream"),
                    "a chunk without size" to Case(chunked("zz\r\nabc\r\n"), UNREACHABLE, "connection failed"),
                    "a chunk of negative size" to Case(chunked("-5\r\nabc\r\n"), UNREACHABLE, "connection failed"),
                ),
        )

    @Test
    fun `a response that is not the protocol is named and not repeated`() =
        ends(
            listOf(300, 301, 302, 303, 304, 305, 307, 308).associate {
                "status $it" to
                    Case(
                        text("HTTP/1.1 $it Elsewhere\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n"),
                        BAD_ANSWER,
                        "redirected ($it)",
                    )
            } +
                listOf(201, 202, 204, 205, 206, 299).associate {
                    "status $it" to
                        Case(
                            text("HTTP/1.1 $it Odd\r\nContent-Length: 0\r\n\r\n"),
                            BAD_ANSWER,
                            "status $it is not part of the protocol",
                        )
                } +
                listOf(400, 401, 403, 404, 405, 410, 418, 451, 499).associate {
                    "$it of another program" to
                        Case(html(it), BAD_ANSWER, "status $it, not from a FedLens server; check the address")
                } +
                mapOf(
                    "101" to
                        Case(
                            text("HTTP/1.1 101 Switching\r\nUpgrade: websocket\r\n\r\n"),
                            BAD_ANSWER,
                            "status 101",
                        ),
                    "407 without a proxy" to Case(html(407), BAD_ANSWER, "not HTTP"),
                    "two interim answers" to
                        Case(text(INTERIM + INTERIM) + http(200, FINISHED), BAD_ANSWER, "not HTTP"),
                    "204 with a body" to
                        Case(text("HTTP/1.1 204 No\r\nContent-Length: 3\r\n\r\nabc"), BAD_ANSWER, "not HTTP"),
                    "another protocol" to Case(text("SSH-2.0-OpenSSH_9.6\r\n\r\n"), BAD_ANSWER, "not HTTP"),
                    "a future HTTP" to Case(text("HTTP/3.1 200 OK\r\n\r\n"), BAD_ANSWER, "not HTTP"),
                    "a status that is no number" to Case(text("HTTP/1.1 abc\r\n\r\n"), BAD_ANSWER, "not HTTP"),
                    "a negative status" to Case(text("HTTP/1.1 -12 Odd\r\n\r\n"), BAD_ANSWER, "not HTTP"),
                    "status 999" to Case(html(999), UNREACHABLE, "status 999 from something"),
                    "a page of a hotel" to
                        Case(html(200), BAD_ANSWER, "an answer of type text/html; not from a FedLens server"),
                    "no type" to
                        Case(
                            text("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"),
                            BAD_ANSWER,
                            "an answer of type unknown",
                        ),
                    "a type that is none" to
                        Case(
                            text("HTTP/1.1 200 OK\r\nContent-Type: ;;\r\nContent-Length: 0\r\n\r\n"),
                            BAD_ANSWER,
                            "an answer of type unknown",
                        ),
                    "compression" to
                        Case(http(200, FINISHED, "Content-Encoding: gzip"), BAD_ANSWER, "in encoding gzip"),
                    "an error in compression" to
                        Case(
                            http(409, errorOf("x", "y", Retry.RETRY_NEVER), "Content-Encoding: br"),
                            BAD_ANSWER,
                            "in encoding br",
                        ),
                    "bytes that are no message" to
                        Case(http(200, byteArrayOf(-1, -1)), BAD_ANSWER, "/v1/check-in: no readable message"),
                    "bytes that are no error" to
                        Case(http(409, byteArrayOf(-1, -1)), BAD_ANSWER, "/v1/check-in: no readable message"),
                    "an error whose text is not UTF-8" to
                        Case(http(409, byteArrayOf(0x0a, 1, -1)), BAD_ANSWER, "no readable message"),
                    "a message that nests too deeply" to
                        Case(http(200, nested(200)), BAD_ANSWER, "no readable message"),
                    "one byte more than a megabyte" to
                        Case(
                            http(200, ByteArray((1 shl 20) + 1)),
                            BAD_ANSWER,
                            "an answer of more than 1048576 bytes",
                        ),
                    "one byte more than an error has" to
                        Case(
                            http(500, ByteArray((64 shl 10) + 1)),
                            BAD_ANSWER,
                            "an answer of more than 65536 bytes",
                        ),
                    "a body that is longer than the client can count" to
                        Case(
                            text("HTTP/1.1 200 OK\r\n$TYPE\r\nContent-Length: 9223372036854775807\r\n\r\n") +
                                ByteArray(2 shl 20),
                            BAD_ANSWER,
                            "an answer of more than",
                        ),
                    "chunks beyond a megabyte" to
                        Case(
                            chunked("fffff\r\n${"x".repeat(0xfffff)}\r\n10\r\nxx"),
                            BAD_ANSWER,
                            "an answer of more than",
                        ),
                ),
        )

    @Test
    fun `a response is read however it is sent`() {
        val whole = FINISHED.toByteArray()
        val responses =
            listOf(
                http(200, FINISHED),
                text(INTERIM) + http(200, FINISHED),
                text("HTTP/1.1 100 Continue\r\n\r\n") + http(200, FINISHED),
                http(200, FINISHED, "Content-Type: Application/VND.fedlens.v1+Protobuf; charset=x"),
                text("HTTP/1.0 200\r\n$TYPE\r\n\r\n") + whole,
                chunked(
                    "${whole.size.toString(16)};x=y\r\n${whole.toString(Charsets.ISO_8859_1)}\r\n0\r\nA: b\r\n\r\n",
                ),
                http(200, FINISHED, "Set-Cookie: a=b", "Strict-Transport-Security: max-age=1"),
            )
        var response = responses.first()
        RawServer.responding { response }.use { server ->
            runTest {
                for (one in responses) {
                    response = one
                    val found = transportTo(server.url, ONCE).use { it.checkIn(CHECK_IN) }
                    assertEquals(FINISHED, found)
                }
            }
        }
    }

    /** An empty response is a message with nothing in it: the caller sees that it says nothing. */
    @Test
    fun `an empty response is a message of which nothing is set`() {
        RawServer.responding { http(200, ByteArray(0)) }.use { server ->
            runTest {
                val found = transportTo(server.url, ONCE).use { it.checkIn(CHECK_IN) }
                assertEquals("RESULT_NOT_SET", found.resultCase.name)
            }
        }
    }

    private fun ends(cases: Map<String, Case>) {
        var response = ByteArray(0)
        RawServer.responding { response }.use { server ->
            runTest {
                for ((name, case) in cases) {
                    response = case.response
                    val error = failureOf { transportTo(server.url, ONCE).use { it.checkIn(CHECK_IN) } }
                    val found = error.message.orEmpty()
                    assertEquals("$name: $found", case.reason, error.reason)
                    assertTrue("$name: $found", case.says in found)
                    assertEquals(name, case.code, error.code)
                }
            }
        }
    }

    private companion object {
        const val TYPE = "Content-Type: ${Wire.MEDIA_TYPE}"
        const val INTERIM = "HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n"

        fun text(raw: String): ByteArray = raw.toByteArray(Charsets.ISO_8859_1)

        fun http(
            status: Int,
            body: ByteArray,
            vararg more: String,
        ): ByteArray {
            val lines = listOf("HTTP/1.1 $status Some", TYPE, "Content-Length: ${body.size}", *more)
            return text(lines.joinToString("\r\n", postfix = "\r\n\r\n")) + body
        }

        fun http(
            status: Int,
            body: MessageLite,
            vararg more: String,
        ): ByteArray = http(status, body.toByteArray(), *more)

        fun html(status: Int): ByteArray {
            val page = "<html>welcome"
            return text(
                "HTTP/1.1 $status Some\r\nContent-Type: text/html\r\nContent-Length: ${page.length}\r\n\r\n$page",
            )
        }

        fun chunked(body: String): ByteArray =
            text("HTTP/1.1 200 OK\r\n$TYPE\r\nTransfer-Encoding: chunked\r\n\r\n$body")

        /** Field 15, a group in a group in a group: more of them than any reader follows. */
        fun nested(depth: Int) = ByteArray(depth) { 0x7b }
    }
}
