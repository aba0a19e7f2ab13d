package org.fedlens.sdk.client

import kotlinx.coroutines.CompletableDeferred
import kotlinx.coroutines.awaitCancellation
import kotlinx.coroutines.cancelAndJoin
import kotlinx.coroutines.launch
import kotlinx.coroutines.runBlocking
import org.fedlens.jvm.JdbcDatabase
import org.fedlens.proto.v1.CheckInResponse
import org.fedlens.proto.v1.Wait
import org.fedlens.proto.v1.WaitReason
import org.fedlens.sdk.Event
import org.fedlens.sdk.TransportException
import org.fedlens.sdk.client.FakeServer.Companion.receipt
import org.fedlens.sdk.store.StateFolder
import org.junit.Assert.assertEquals
import org.junit.Assert.assertThrows
import org.junit.Assert.assertTrue
import org.junit.Before
import org.junit.Rule
import org.junit.Test
import org.junit.rules.TemporaryFolder
import org.junit.rules.Timeout

/** Pauses that the server asks for, when a process or a job ends before they do. */
class PausesTest {
    @get:Rule
    val folder = TemporaryFolder()

    @get:Rule
    val timeout: Timeout = Timeout.seconds(60)

    private lateinit var run: ClientRun

    @Before
    fun makeRun() {
        run = ClientRun(FakeServer(), folder.root)
    }

    private fun <T> inFolder(use: (StateFolder) -> T): T =
        StateFolder.open(folder.root, "https://fl.example.org", JdbcDatabase::open).use(use)

    private fun notBefore(): Long = inFolder { String(checkNotNull(it.get("not_before"))).toLong() }

    private fun mayNotAskFor(milliseconds: Long) {
        val until = System.currentTimeMillis() + milliseconds
        inFolder { it.set("not_before" to "$until".toByteArray()) }
    }

    private fun isTold(retryAfterMs: Int) {
        val wait = Wait.newBuilder().setRetryAfterMs(retryAfterMs).setReason(WaitReason.WAIT_REASON_REST)
        run.server.trouble("check-in") { CheckInResponse.newBuilder().setWait(wait.setDetail("soon")).build() }
    }

    @Test
    fun `a new process asks no earlier than the last one was told`() {
        isTold(60_000)
        repeat(2) { run.client().use { client -> runBlocking { client.runOnce() } } }
        val (told, kept) = run.events<Event.Waiting>()
        assertEquals(Event.Waiting("rest", 60_000, "soon"), told)
        assertEquals("not_before", kept.reason)
        assertTrue(kept.retryAfterMs in 30_000..66_000)
        assertEquals(kept.retryAfterMs, run.pauses.last())
    }

    @Test
    fun `nor does the next job in the same process, if the last one was cancelled in its pause`() {
        isTold(60_000)
        val begun = CompletableDeferred<Unit>()
        run.duringPause = {
            begun.complete(Unit)
            awaitCancellation()
        }
        run.client().use { client ->
            runBlocking {
                val job = launch { client.runOnce() }
                begun.await()
                job.cancelAndJoin()
                run.duringPause = {}
                repeat(2) { client.runOnce() }
            }
        }
        assertEquals(listOf("rest", "not_before"), run.events<Event.Waiting>().map { it.reason })
    }

    @Test
    fun `a short pause is not written to the disk`() {
        isTold(1_000)
        run.client().use { runBlocking { it.runOnce() } }
        assertEquals(null, inFolder { it.get("not_before") })
    }

    @Test
    fun `a clock that was set back by a day stops a client for an hour, however often its process ends`() {
        mayNotAskFor(86_400_000)
        run.client().use { runBlocking { it.runOnce() } }
        assertEquals(listOf(3_600_000L), run.pauses)
        assertTrue(notBefore() <= System.currentTimeMillis() + 3_600_000)
    }

    @Test
    fun `a pause that is over is forgotten`() {
        mayNotAskFor(-1)
        run.client().use { runBlocking { it.runOnce() } }
        assertEquals(emptyList<Event.Waiting>(), run.events<Event.Waiting>())
    }

    @Test
    fun `a result in the outbox does not wait`() {
        run.server.trouble("update") { receipt(ByteArray(3)) }
        run.client().use { client ->
            assertThrows(TransportException::class.java) { runBlocking { client.runOnce() } }
        }
        mayNotAskFor(3_000_000)
        val outcome = run.client().use { runBlocking { it.runOnce() } }
        assertTrue(outcome is Event.RoundReported)
        assertEquals(emptyList<Long>(), run.pauses)
    }
}
