package org.fedlens.sdk.net

import com.google.protobuf.ByteString
import kotlinx.coroutines.ExperimentalCoroutinesApi
import kotlinx.coroutines.test.currentTime
import kotlinx.coroutines.test.runTest
import okhttp3.Call
import okhttp3.OkHttpClient
import okhttp3.Request
import okhttp3.Response
import okhttp3.mockwebserver.MockResponse
import okhttp3.mockwebserver.MockWebServer
import okhttp3.mockwebserver.QueueDispatcher
import okhttp3.mockwebserver.RecordedRequest
import okhttp3.mockwebserver.SocketPolicy
import okio.Buffer
import org.fedlens.proto.v1.Capabilities
import org.fedlens.proto.v1.CheckInRequest
import org.fedlens.proto.v1.ClientRole
import org.fedlens.proto.v1.EnrolRequest
import org.fedlens.proto.v1.EnrolResponse
import org.fedlens.proto.v1.FailureReason
import org.fedlens.proto.v1.FailureRequest
import org.fedlens.proto.v1.FailureResponse
import org.fedlens.proto.v1.ForgetRequest
import org.fedlens.proto.v1.ForgetResponse
import org.fedlens.proto.v1.ProgramFormat
import org.fedlens.proto.v1.Receipt
import org.fedlens.proto.v1.Retry
import org.fedlens.proto.v1.UpdateHeader
import org.fedlens.sdk.KeyedHash
import org.fedlens.sdk.TransportException.Reason
import org.fedlens.sdk.UpdateFrame
import org.fedlens.sdk.Wire
import org.fedlens.sdk.readUpdate
import org.junit.Assert.assertArrayEquals
import org.junit.Assert.assertEquals
import org.junit.Assert.assertFalse
import org.junit.Assert.assertTrue
import org.junit.Test
import java.io.ByteArrayOutputStream
import java.util.concurrent.CountDownLatch
import java.util.concurrent.TimeUnit

@OptIn(ExperimentalCoroutinesApi::class)
class HttpTransportTest {
    private val received = Receipt.newBuilder().setBodySha256(ByteString.copyFrom(ByteArray(32) { 7 })).build()

    @Test
    fun `a request carries the credential, its type and its length, and nothing that OkHttp adds`() =
        runTest {
            serving(reply(FINISHED)).use { server ->
                transportTo(server.address).use { it.checkIn(CHECK_IN) }
                val request = server.next()
                assertEquals("POST /v1/check-in HTTP/1.1", request.requestLine)
                assertEquals(
                    mapOf(
                        "Authorization" to "Bearer " + "c3Nz".repeat(10) + "c3M",
                        "Content-Type" to Wire.MEDIA_TYPE,
                        "Content-Length" to "${CHECK_IN.serializedSize}",
                        "Host" to server.url("").run { "$host:$port" },
                    ),
                    request.headers.toMap(),
                )
                assertArrayEquals(CHECK_IN.toByteArray(), request.body.readByteArray())
            }
        }

    @Test
    fun `every call reaches its address with its message`() =
        runTest {
            val failure =
                FailureRequest
                    .newBuilder()
                    .setProtocol(1)
                    .setReason(FailureReason.FAILURE_REASON_POLICY)
                    .build()
            val capabilities = Capabilities.newBuilder().addFormats(ProgramFormat.PROGRAM_FORMAT_PTE).build()
            val evaluation = UpdateFrame(UpdateHeader.newBuilder().setProtocol(1).build(), emptyList())
            val role = EnrolResponse.newBuilder().setRole(ClientRole.CLIENT_ROLE_TRAINER).build()
            val forgotten = ForgetResponse.newBuilder().setAggregating(true).build()
            val responses = listOf(role, received, received, FailureResponse.getDefaultInstance(), forgotten)
            serving(*responses.map(::reply).toTypedArray()).use { server ->
                transportTo(server.address).use { transport ->
                    assertEquals(role, transport.enrol("a-token", capabilities))
                    assertEquals(received, transport.putUpdate(7, 12, evaluation))
                    assertEquals(received, transport.putEvaluation(7, 13, evaluation))
                    transport.reportFailure(7, 14, failure)
                    assertEquals(forgotten, transport.forget())
                }
                val requests = List(responses.size) { server.next() }
                assertEquals(
                    listOf(
                        "POST /v1/clients",
                        "PUT /v1/tasks/7/rounds/12/update",
                        "PUT /v1/tasks/7/rounds/13/evaluation",
                        "POST /v1/tasks/7/rounds/14/failure",
                        "DELETE /v1/clients/self",
                    ),
                    requests.map { "${it.method} ${it.path}" },
                )
                val enrolled = EnrolRequest.parseFrom(requests[0].body.readByteArray())
                assertEquals("a-token", enrolled.enrolmentToken)
                assertEquals(ByteString.copyFrom(KeyedHash.clientId(SECRET)), enrolled.clientId)
                assertEquals(capabilities, enrolled.capabilities)
                assertEquals(evaluation.header, readUpdate(requests[2].body.readByteArray()).header)
                assertEquals(failure, FailureRequest.parseFrom(requests[3].body.readByteArray()))
                assertEquals(1, ForgetRequest.parseFrom(requests[4].body.readByteArray()).protocol)
                // One connection carries them all.
                assertEquals(listOf(0, 1, 2, 3, 4), requests.map { it.sequenceNumber })
            }
        }

    @Test
    fun `a prefix of the path stays before every call`() =
        runTest {
            serving(reply(FINISHED)).use { server ->
                transportTo("${server.address}fedlens/").use { it.checkIn(CHECK_IN) }
                assertEquals("/fedlens/v1/check-in", server.next().path)
            }
        }

    @Test
    fun `an update is streamed with its length, and again after a cut`() =
        runTest {
            val update = updateOf(500_000)
            val body = ByteArrayOutputStream().also(update::writeTo).toByteArray()
            val cut = MockResponse().setSocketPolicy(SocketPolicy.DISCONNECT_DURING_REQUEST_BODY)
            val reported = mutableListOf<String>()
            // MockWebServer hangs up before it takes the response from its queue: an attempt in between would find that again.
            val taken = CountDownLatch(1)
            serving().use { server ->
                server.dispatcher =
                    object : QueueDispatcher() {
                        override fun dispatch(request: RecordedRequest): MockResponse {
                            val response = super.dispatch(request)
                            taken.countDown()
                            return response
                        }
                    }
                listOf(cut, reply(received)).forEach(server::enqueue)
                val onRetry: OnRetry = { reason, _, _ ->
                    reported += reason
                    taken.awaitSoon()
                }
                transportTo(server.address, onRetry = onRetry).use { transport ->
                    assertEquals(received, transport.putUpdate(7, 1, update))
                }
                server.next()
                val request = server.next()
                assertEquals("${body.size}", request.getHeader("Content-Length"))
                assertArrayEquals(body, request.body.readByteArray())
            }
            assertEquals(1, reported.size)
            assertTrue("$reported", reported.single().startsWith("connection failed"))
        }

    @Test
    fun `a response that comes before the whole update is understood, whether the rest is taken or cut off`() =
        runTest {
            val update = updateOf(2_000_000)
            for (takesRest in listOf(true, false)) {
                RawServer { connection ->
                    val stream = connection.getInputStream()
                    val piece = ByteArray(4_096)
                    stream.read(piece)
                    connection.getOutputStream().write(
                        "HTTP/1.1 409 Conflict\r\nContent-Type: ${Wire.MEDIA_TYPE}\r\n\r\n".toByteArray() +
                            errorOf("round-closed", "too late", Retry.RETRY_NEVER).toByteArray(),
                    )
                    connection.shutdownOutput()
                    while (takesRest && stream.read(piece) >= 0) Unit
                }.use { server ->
                    val error = failureOf { transportTo(server.url, ONCE).use { it.putUpdate(7, 1, update) } }
                    assertEquals("${error.message}", Reason.REFUSED, error.reason)
                    assertEquals("round-closed", error.code)
                }
            }
        }

    @Test
    fun `a later response is repeated not sooner than it says, and not later than in an hour`() =
        runTest {
            val full = refusal(507, "storage-full", "no room", Retry.RETRY_LATER, 50_000)
            val never = refusal(503, "unavailable", "gone fishing", Retry.RETRY_LATER, -1)
            val reported = mutableListOf<Triple<String, Long, Int>>()
            serving(full, full, never, reply(FINISHED)).use { server ->
                transportTo(server.address) { reason, delayMs, attempt -> reported += Triple(reason, delayMs, attempt) }
                    .use { assertEquals(FINISHED, it.checkIn(CHECK_IN)) }
            }
            assertEquals(
                listOf(
                    "storage-full: no room",
                    "storage-full: no room",
                    "unavailable: gone fishing",
                ),
                reported.map {
                    it.first
                },
            )
            assertEquals(listOf(1, 2, 3), reported.map { it.third })
            val waits = reported.map { it.second }
            assertTrue("$waits", waits[0] in 50_000L..50_500L && waits[1] in 50_000L..51_000L)
            assertTrue("$waits", waits[2] in 3_600_000L..3_602_000L)
            assertEquals(waits.sum(), currentTime)
        }

    @Test
    fun `a now response is repeated at once but for what it says`() =
        runTest {
            val now = refusal(429, "slow-down", "again", Retry.RETRY_NOW)
            val soon = refusal(429, "slow-down", "again", Retry.RETRY_NOW, 30)
            val waits = mutableListOf<Long>()
            serving(now, reply(FINISHED), soon, reply(FINISHED)).use { server ->
                transportTo(server.address) { _, delayMs, _ -> waits += delayMs }.use {
                    it.checkIn(CHECK_IN)
                    it.checkIn(CHECK_IN)
                }
            }
            assertEquals(listOf(0L, 30L), waits)
        }

    @Test
    fun `a connection that is cut anywhere is tried again`() =
        runTest {
            val cut =
                listOf(
                    MockResponse().setSocketPolicy(SocketPolicy.DISCONNECT_AT_START),
                    MockResponse().setSocketPolicy(SocketPolicy.DISCONNECT_AFTER_REQUEST),
                    reply(FINISHED).setSocketPolicy(SocketPolicy.DISCONNECT_DURING_RESPONSE_BODY),
                )
            val reported = mutableListOf<String>()
            serving(*cut.toTypedArray(), reply(FINISHED)).use { server ->
                transportTo(server.address) { reason, _, _ -> reported += reason }
                    .use { assertEquals(FINISHED, it.checkIn(CHECK_IN)) }
            }
            assertEquals(3, reported.size)
            assertTrue("$reported", reported.all { it.startsWith("connection failed: ") })
        }

    @Test
    fun `a connection that the server has closed since is replaced without a word`() =
        runTest {
            val last = reply(FINISHED).setSocketPolicy(SocketPolicy.DISCONNECT_AT_END)
            serving(last, reply(FINISHED)).use { server ->
                transportTo(server.address, ONCE).use {
                    it.checkIn(CHECK_IN)
                    it.checkIn(CHECK_IN)
                }
                assertEquals(listOf(0, 0), List(2) { server.next().sequenceNumber })
            }
        }

    @Test
    fun `a server that says nothing is given up after its silence`() =
        runTest {
            val half = reply(FINISHED).setSocketPolicy(SocketPolicy.KEEP_OPEN).setHeader("Content-Length", "100")
            val silent = MockResponse().setSocketPolicy(SocketPolicy.NO_RESPONSE)
            for (stalling in listOf(silent, half)) {
                serving(stalling).use { server ->
                    val transport = transportTo(server.address, ONCE, timeouts = Timeouts(silenceMs = 50))
                    val error = failureOf { transport.use { it.checkIn(CHECK_IN) } }
                    assertEquals(Reason.UNREACHABLE, error.reason)
                    assertEquals("given up after 1 attempts in 0.0 s: no answer in time", error.message)
                }
            }
        }

    @Test
    fun `who wants to be forgotten does not wait for ever for a server that is away`() =
        runTest {
            val away = serving().use { it.address }
            val error = failureOf { transportTo(away).use { it.forget() } }
            assertEquals(Reason.UNREACHABLE, error.reason)
            assertTrue("$currentTime", currentTime <= 20_000)
        }

    @Test
    fun `a response that comes byte by byte is given up in the end and asked for again`() =
        runTest {
            // 2 s in all, and never silent for longer than 20 ms. On a busy machine the next answer may take 1.5 s.
            val dripping =
                reply(FINISHED)
                    .setBody(Buffer().write(ByteArray(100)))
                    .throttleBody(1, 20, TimeUnit.MILLISECONDS)
            val reported = mutableListOf<String>()
            serving(dripping, reply(FINISHED)).use { server ->
                val timeouts = Timeouts(silenceMs = 1_000, messagesMs = 500)
                transportTo(server.address, timeouts = timeouts) { reason, _, _ -> reported += reason }
                    .use { assertEquals(FINISHED, it.checkIn(CHECK_IN)) }
            }
            assertEquals(listOf("no answer in time"), reported)
        }

    @Test
    fun `an update may take longer in all than a message`() =
        runTest {
            // The receipt has 34 bytes: 1.6 s or more, with pauses of 50 ms. On a busy machine one may last 1.5 s.
            val dripping = reply(received).throttleBody(1, 50, TimeUnit.MILLISECONDS)
            val evaluation = UpdateFrame(UpdateHeader.newBuilder().setProtocol(1).build(), emptyList())
            serving(dripping).use { server ->
                val timeouts = Timeouts(silenceMs = 1_500, messagesMs = 10)
                transportTo(server.address, ONCE, timeouts = timeouts)
                    .use { assertEquals(received, it.putEvaluation(7, 1, evaluation)) }
            }
        }

    @Test
    fun `whatever ends the sending of a request wakes the caller`() =
        runTest {
            serving().use { server ->
                val request = Request.Builder().url(server.address).build()
                val call =
                    object : Call by OkHttpClient().newCall(request) {
                        override fun execute(): Response = throw OutOfMemoryError("the test's")
                    }
                val outcome = runCatching { call.exchange(emptyList()) { error("there is no response") } }
                assertTrue("$outcome", outcome.exceptionOrNull() is OutOfMemoryError)
            }
        }

    @Test
    fun `a check-in may be silent for as long as it asks to be held`() =
        runTest {
            val held = CheckInRequest.newBuilder(CHECK_IN).setHoldMs(20_000).build()
            val late = reply(FINISHED).setHeadersDelay(300, TimeUnit.MILLISECONDS)
            serving(late).use { server ->
                val transport = transportTo(server.address, ONCE, timeouts = Timeouts(silenceMs = 50))
                assertEquals(FINISHED, transport.use { it.checkIn(held) })
            }
        }

    @Test
    fun `a redirect is not followed`() =
        runTest {
            serving(reply(FINISHED)).use { elsewhere ->
                val moved = MockResponse().setResponseCode(307).setHeader("Location", elsewhere.address)
                serving(moved).use { server ->
                    val error = failureOf { transportTo(server.address).use { it.checkIn(CHECK_IN) } }
                    assertEquals(Reason.BAD_ANSWER, error.reason)
                }
                assertEquals(0, elsewhere.requestCount)
            }
        }

    @Test
    fun `cookies are not kept`() =
        runTest {
            serving(reply(FINISHED).setHeader("Set-Cookie", "a=b"), reply(FINISHED)).use { server ->
                transportTo(server.address).use {
                    it.checkIn(CHECK_IN)
                    it.checkIn(CHECK_IN)
                }
                server.next()
                assertEquals(null, server.next().getHeader("Cookie"))
            }
        }

    @Test
    fun `the secret is in no text`() =
        runTest {
            val texts = mutableListOf<String>()
            val responses = listOf(refusal(409, "round-closed", "too late"), MockResponse().setBody("<html>"))
            for (response in responses) {
                serving(MockResponse().setSocketPolicy(SocketPolicy.DISCONNECT_AT_START), response).use { server ->
                    val transport = transportTo(server.address) { reason, _, _ -> texts += reason }
                    val error = failureOf { transport.use { it.checkIn(CHECK_IN) } }
                    texts += listOf(error.stackTraceToString(), transport.toString())
                }
            }
            assertEquals(6, texts.size)
            for (text in texts) assertFalse(text, "c3Nz" in text || "ssss" in text)
        }

    @Test
    fun `a port where nobody listens is reported and given up when the time is over`() =
        runTest {
            val gone = serving().run { address.also { shutdown() } }
            val reported = mutableListOf<String>()
            val transport = transportTo(gone, Backoff(giveUpAfterMs = 60_000)) { reason, _, _ -> reported += reason }
            val error = failureOf { transport.use { it.checkIn(CHECK_IN) } }
            assertEquals(Reason.UNREACHABLE, error.reason)
            assertTrue(error.message.orEmpty(), error.message.orEmpty().startsWith("given up after"))
            assertTrue("$reported", reported.isNotEmpty() && reported.all { it.startsWith("connection failed: ") })
        }

    private fun MockWebServer.next(): RecordedRequest = checkNotNull(takeRequest(10, TimeUnit.SECONDS)) { "no request" }
}
