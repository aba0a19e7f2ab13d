package org.fedlens.sdk.net

import kotlinx.coroutines.test.TestScope
import kotlinx.coroutines.test.runTest
import okhttp3.mockwebserver.MockResponse
import okhttp3.mockwebserver.MockWebServer
import okhttp3.mockwebserver.SocketPolicy
import okio.Buffer
import org.fedlens.proto.v1.Retry
import org.fedlens.sdk.StateException
import org.fedlens.sdk.TransportException
import org.fedlens.sdk.TransportException.Reason
import org.fedlens.sdk.toHex
import org.junit.Assert.assertArrayEquals
import org.junit.Assert.assertEquals
import org.junit.Assert.assertThrows
import org.junit.Assert.assertTrue
import org.junit.Rule
import org.junit.Test
import org.junit.rules.TemporaryFolder
import java.io.File
import kotlin.random.Random

class DownloadTest {
    @get:Rule
    val folder = TemporaryFolder()

    private val raw = Random(5).nextBytes(300_000)
    private val digest = Random(6).nextBytes(32)
    private val size = raw.size.toLong()
    private val reported = mutableListOf<String>()
    private val part: File by lazy { File(folder.root, "part") }

    /** Fetch from [responses]; return the requests' ranges. */
    private suspend fun TestScope.fetch(
        vararg responses: MockResponse,
        backoff: Backoff = Backoff(),
        most: Long = size,
    ): List<String?> =
        serving(*responses).use { server ->
            try {
                transportTo(server.address, backoff) { reason, _, _ -> reported += reason }
                    .use { it.fetch(digest, part, most) }
            } finally {
                assertEquals("all responses were requested", responses.size, server.requestCount)
            }
            ranges(server)
        }

    private fun ranges(server: MockWebServer) =
        List(server.requestCount) {
            val request = server.takeRequest()
            assertEquals("GET /v1/blobs/${digest.toHex()}", "${request.method} ${request.path}")
            request.getHeader("Range")
        }

    @Test
    fun `a blob is written to a file that is not there yet`() =
        runTest {
            assertEquals(listOf(null), fetch(blobResponse(raw)))
            assertArrayEquals(raw, part.readBytes())
        }

    @Test
    fun `a download goes on where it was cut`() =
        runTest {
            val cut = blobResponse(raw).setSocketPolicy(SocketPolicy.DISCONNECT_DURING_RESPONSE_BODY)
            val first =
                serving(cut).use { server ->
                    failureOf { transportTo(server.address, ONCE).use { it.fetch(digest, part, size) } }
                }
            assertEquals(Reason.UNREACHABLE, first.reason)
            val have = part.length().toInt()
            assertTrue("$have bytes", have in 1 until raw.size)
            assertEquals(listOf("bytes=$have-"), fetch(rangeResponse(raw, have)))
            assertArrayEquals(raw, part.readBytes())
        }

    @Test
    fun `a download is checked before each attempt`() =
        runTest {
            val busy = MockResponse().setResponseCode(503)
            var checks = 0
            val failure =
                serving(busy, blobResponse(raw)).use { server ->
                    failureOf {
                        transportTo(server.address).use { transport ->
                            transport.fetchChecked(digest, part, size) {
                                checks += 1
                                if (checks > 1) throw TransportException(Reason.NO_UNMETERED_NETWORK, "no Wi-Fi")
                            }
                        }
                    }.also { assertEquals(1, server.requestCount) }
                }
            assertEquals(Reason.NO_UNMETERED_NETWORK, failure.reason)
            assertEquals(2, checks)
        }

    @Test
    fun `a server without ranges sends everything again`() =
        runTest {
            part.writeBytes(ByteArray(100) { 1 })
            assertEquals(listOf("bytes=100-"), fetch(blobResponse(raw)))
            assertArrayEquals(raw, part.readBytes())
        }

    @Test
    fun `a beginning that is longer than the blob is started anew`() =
        runTest {
            part.writeBytes(raw + 1)
            val outside = refusal(416, "wrong-range", "outside").setHeader("Content-Range", "bytes */$size")
            assertEquals(listOf("bytes=${size + 1}-", null), fetch(outside, blobResponse(raw)))
            assertArrayEquals(raw, part.readBytes())
            assertEquals(listOf("the server has no such range; starting from the first byte"), reported)
        }

    @Test
    fun `a 416 without a range is a refusal`() =
        runTest {
            val error = failureOf { fetch(refusal(416, "wrong-range", "outside")) }
            assertEquals(Reason.REFUSED, error.reason)
            assertEquals("wrong-range", error.code)
        }

    @Test
    fun `another range than the one asked for is named, and the next attempt starts anew`() =
        runTest {
            val wrong =
                listOf(
                    null,
                    "bytes 0-299999/300000",
                    "bytes 99-299999/300000",
                    "bytes 1000-299999/300000",
                    "bytes 100-99/300000",
                    "bytes 100-",
                    "bytes 100-299999",
                    "bytes 100-99999999999999999999/*",
                    "items 100-299999/300000",
                    "bytes */300000",
                )
            for (range in wrong) {
                part.writeBytes(raw.copyOf(100))
                val response = rangeResponse(raw, 100).removeHeader("Content-Range")
                if (range != null) response.setHeader("Content-Range", range)
                val error = failureOf { fetch(response) }
                assertEquals("$range", Reason.BAD_ANSWER, error.reason)
                assertTrue(error.message, "another range came back ('${range.orEmpty()}')" in error.message.orEmpty())
                assertEquals(0L, part.length())
            }
        }

    @Test
    fun `a range that ends early is asked for again from there`() =
        runTest {
            part.writeBytes(raw.copyOf(100))
            // Sent until the connection ends, which is no sign that all has come.
            val early =
                rangeResponse(raw, 100)
                    .setBody(Buffer().write(raw, 100, 900))
                    .removeHeader("Content-Length")
                    .setSocketPolicy(SocketPolicy.DISCONNECT_AT_END)
            assertEquals(listOf("bytes=100-", "bytes=1000-"), fetch(early, rangeResponse(raw, 1_000)))
            assertArrayEquals(raw, part.readBytes())
            assertEquals(listOf("bytes are missing: 299000 of a range did not come"), reported)
        }

    @Test
    fun `a download longer than announced ends early and leaves nothing`() =
        runTest {
            val error = failureOf { fetch(blobResponse(raw), most = 10_000) }
            assertEquals(Reason.BAD_ANSWER, error.reason)
            assertTrue(error.message, "more than the 10000 bytes that were announced" in error.message.orEmpty())
            assertEquals(0L, part.length())
        }

    @Test
    fun `a page instead of a blob is named and leaves the beginning alone`() =
        runTest {
            part.writeBytes(raw.copyOf(100))
            val page = MockResponse().setHeader("Content-Type", "text/html").setBody("<html>pay first")
            val packed = blobResponse(raw).setHeader("Content-Encoding", "gzip")
            for ((response, says) in listOf(page to "type text/html", packed to "in encoding gzip")) {
                val error = failureOf { fetch(response) }
                assertEquals(Reason.BAD_ANSWER, error.reason)
                assertTrue(error.message, says in error.message.orEmpty())
                assertArrayEquals(raw.copyOf(100), part.readBytes())
            }
        }

    @Test
    fun `refusals, proxies and full servers mean the same as for other calls`() =
        runTest {
            val refused = failureOf { fetch(refusal(404, "unknown", "no such blob")) }
            assertEquals(Reason.REFUSED to "unknown", refused.reason to refused.code)
            val busy = refusal(429, "slow-down", "wait", Retry.RETRY_LATER, 1_000)
            val proxy = MockResponse().setResponseCode(502).setBody("<html>bad gateway")
            fetch(busy, proxy, blobResponse(raw))
            assertArrayEquals(raw, part.readBytes())
        }

    @Test
    fun `a file that cannot be written is no fault of the network`() {
        val error =
            assertThrows(StateException::class.java) {
                runTest {
                    serving(blobResponse(raw)).use { server ->
                        transportTo(server.address).use { it.fetch(digest, File(folder.root, "no/such/folder"), size) }
                    }
                }
            }
        assertEquals(StateException.Reason.NOT_WRITABLE, error.reason)
    }
}
