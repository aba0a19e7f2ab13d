package org.fedlens.sdk.net

import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.cancelAndJoin
import kotlinx.coroutines.launch
import kotlinx.coroutines.runBlocking
import org.fedlens.proto.v1.Retry
import org.fedlens.sdk.Wire
import org.junit.Assert.assertArrayEquals
import org.junit.Assert.assertEquals
import org.junit.Assert.assertTrue
import org.junit.Rule
import org.junit.Test
import org.junit.rules.TemporaryFolder
import java.io.File
import java.io.IOException
import java.net.Socket
import java.util.concurrent.CountDownLatch
import kotlin.random.Random

/** Cancellation: the coroutine resumes at once and its connection is closed, whatever they were doing. */
class CancellationTest {
    @get:Rule
    val folder = TemporaryFolder()

    private val reached = CountDownLatch(1)
    private val hungUp = CountDownLatch(1)

    /** Cancel [call] when [serve] has returned, and check that the connection then ends. */
    private fun cancelled(
        scheme: String = "http",
        serve: (Socket) -> Unit,
        call: suspend (HttpTransport) -> Unit,
    ) {
        RawServer { connection ->
            serve(connection)
            reached.countDown()
            drain(connection)
            hungUp.countDown()
        }.use { server ->
            runBlocking {
                val transport = HttpTransport(server.url.replace("http", scheme), SECRET)
                val job = launch(Dispatchers.IO) { call(transport) }
                reached.awaitSoon()
                job.cancelAndJoin()
                assertTrue(job.isCancelled)
                hungUp.awaitSoon()
                transport.close()
            }
        }
    }

    private fun drain(connection: Socket) {
        val chunk = ByteArray(1 shl 16)
        try {
            while (connection.getInputStream().read(chunk) >= 0) Unit
        } catch (_: IOException) {
            // Reset, which is as good.
        }
    }

    private fun Socket.send(raw: ByteArray) =
        getOutputStream().run {
            write(raw)
            flush()
        }

    private fun beginning(
        type: String,
        size: Int,
    ) = "HTTP/1.1 200 OK\r\nContent-Type: $type\r\nContent-Length: $size\r\n\r\n".toByteArray()

    @Test
    fun `in the handshake`() = cancelled("https", { it.getInputStream().read() }) { it.checkIn(CHECK_IN) }

    @Test
    fun `while the server holds the response`() =
        cancelled(serve = { RawServer.readRequest(it.getInputStream()) }) { it.checkIn(CHECK_IN) }

    @Test
    fun `while an update is sent`() {
        val update = updateOf(4_000_000)
        cancelled(serve = { it.getInputStream().read(ByteArray(100_000)) }) { it.putUpdate(7, 1, update) }
    }

    @Test
    fun `while a response is read`() =
        cancelled(
            serve = {
                RawServer.readRequest(it.getInputStream())
                it.send(beginning(Wire.MEDIA_TYPE, 100) + ByteArray(50))
            },
        ) { it.checkIn(CHECK_IN) }

    @Test
    fun `while a blob is read, of which what has come stays`() {
        val raw = Random(4).nextBytes(100_000)
        val part = File(folder.root, "part")
        cancelled(
            serve = {
                RawServer.readRequest(it.getInputStream())
                it.send(beginning("application/octet-stream", raw.size) + raw.copyOf(50_000))
                while (part.length() < 50_000) Thread.yield()
            },
        ) { it.fetch(ByteArray(32), part, raw.size.toLong()) }
        assertArrayEquals(raw.copyOf(50_000), part.readBytes())
    }

    @Test
    fun `between two attempts`() {
        val later = refusal(503, "unavailable", "in an hour", Retry.RETRY_LATER, 3_600_000)
        val waiting = CountDownLatch(1)
        serving(later).use { server ->
            runBlocking {
                val transport = HttpTransport(server.address, SECRET, onRetry = { _, _, _ -> waiting.countDown() })
                val job = launch(Dispatchers.IO) { transport.checkIn(CHECK_IN) }
                waiting.awaitSoon()
                job.cancelAndJoin()
                assertTrue(job.isCancelled)
                transport.close()
            }
            assertEquals(1, server.requestCount)
        }
    }

    @Test
    fun `before anything was sent`() {
        serving().use { server ->
            runBlocking {
                val transport = HttpTransport(server.address, SECRET)
                val job =
                    launch(Dispatchers.IO) {
                        coroutineContext[kotlinx.coroutines.Job]?.cancel()
                        transport.checkIn(CHECK_IN)
                    }
                job.join()
                assertTrue(job.isCancelled)
                transport.close()
            }
            assertEquals(0, server.requestCount)
        }
    }
}
