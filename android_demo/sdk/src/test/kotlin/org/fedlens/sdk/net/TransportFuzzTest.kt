package org.fedlens.sdk.net

import com.google.protobuf.ByteString
import com.google.protobuf.MessageLite
import kotlinx.coroutines.test.runTest
import org.fedlens.proto.v1.Assignment
import org.fedlens.proto.v1.BlobSet
import org.fedlens.proto.v1.CheckInResponse
import org.fedlens.proto.v1.Retry
import org.fedlens.proto.v1.Wait
import org.fedlens.sdk.Wire
import org.fedlens.sdk.orNamedError
import org.junit.Assert.assertTrue
import org.junit.Rule
import org.junit.Test
import org.junit.rules.TemporaryFolder
import java.io.File
import kotlin.random.Random

/** Damaged responses, drawn from a seed: each gives a valid message or a named error. */
class TransportFuzzTest {
    @get:Rule
    val folder = TemporaryFolder()

    private val random = Random(20_260_602)

    private val assignment: CheckInResponse =
        CheckInResponse
            .newBuilder()
            .setAssignment(
                Assignment
                    .newBuilder()
                    .setTask(7)
                    .setRound(3)
                    .setSeed(ByteString.copyFrom(ByteArray(32) { 1 }))
                    .setTimeLeftMs(60_000)
                    .addSets(BlobSet.newBuilder().setName("model").setSize(5_000)),
            ).build()

    private val responses: List<ByteArray> =
        listOf(
            http("200 OK", assignment),
            http("200 OK", CheckInResponse.newBuilder().setWait(Wait.newBuilder().setRetryAfterMs(100)).build()),
            http("409 Conflict", errorOf("round-closed", "the round is over", Retry.RETRY_NEVER)),
            http("507 Insufficient Storage", errorOf("storage-full", "no room", Retry.RETRY_LATER, 5)),
            raw("HTTP/1.1 200 OK\r\nContent-Type: ${Wire.MEDIA_TYPE}\r\nTransfer-Encoding: chunked\r\n\r\n") +
                raw("8\r\n") + ByteArray(8) { 8 } + raw("\r\n0\r\n\r\n"),
            raw("HTTP/1.1 206 Partial Content\r\nContent-Type: application/octet-stream\r\n") +
                raw("Content-Length: 6\r\nContent-Range: bytes 4-9/10\r\n\r\nabcdef"),
            raw("HTTP/1.1 502 Bad Gateway\r\nContent-Type: text/html\r\n\r\n<html>bad gateway"),
            raw("HTTP/1.1 103 Early Hints\r\n\r\n") + http("200 OK", assignment),
        )

    @Test
    fun `a damaged response to a check-in or a fetch is a message, a beginning or a named error`() {
        var response = ByteArray(0)
        var named = 0
        val part = File(folder.root, "part")
        RawServer.responding { response }.use { server ->
            runTest {
                transportTo(server.url, ONCE, timeouts = Timeouts(silenceMs = 5_000)).use { transport ->
                    repeat(ROUNDS) { round ->
                        response = damaged(responses[round % responses.size])
                        val checkedIn = attempt { transport.checkIn(CHECK_IN) }
                        if (round % 3 == 0) part.writeText("0123")
                        val fetched = attempt { transport.fetch(ByteArray(32), part, MOST) }
                        if (!checkedIn) named += 1
                        if (!fetched) named += 1
                        assertTrue("response $round leaves ${part.length()} bytes", part.length() <= MOST)
                    }
                }
            }
        }
        // Damage that never shows would test nothing, and so would damage that always does.
        assertTrue("$named of ${2 * ROUNDS} end in an error", named in ROUNDS / 2..2 * ROUNDS - ROUNDS / 20)
    }

    /** True if [call] succeeds; an error without a name fails the test. */
    private suspend fun attempt(call: suspend () -> Any): Boolean {
        val outcome = runCatching { call() }
        return orNamedError { outcome.getOrThrow() } != null
    }

    private fun damaged(response: ByteArray): ByteArray =
        when (random.nextInt(6)) {
            0 -> response
            1 -> response.copyOf(random.nextInt(response.size))
            2 -> random.nextBytes(random.nextInt(300))
            3 -> response.copyOf(random.nextInt(response.size)) + random.nextBytes(random.nextInt(100))
            else -> withOtherBytes(response.copyOf())
        }

    private fun withOtherBytes(response: ByteArray): ByteArray {
        repeat(1 + random.nextInt(4)) { response[random.nextInt(response.size)] = random.nextInt().toByte() }
        return response
    }

    private companion object {
        const val ROUNDS = 1_500
        const val MOST = 10_000L

        fun raw(text: String): ByteArray = text.toByteArray(Charsets.ISO_8859_1)

        fun http(
            status: String,
            body: MessageLite,
        ): ByteArray {
            val length = "Content-Length: ${body.serializedSize}"
            return raw("HTTP/1.1 $status\r\nContent-Type: ${Wire.MEDIA_TYPE}\r\n$length\r\n\r\n") + body.toByteArray()
        }
    }
}
