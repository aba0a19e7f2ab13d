package org.fedlens.sdk.client

import kotlinx.coroutines.CancellationException
import kotlinx.coroutines.CompletableDeferred
import kotlinx.coroutines.async
import kotlinx.coroutines.awaitCancellation
import kotlinx.coroutines.runBlocking
import kotlinx.coroutines.supervisorScope
import org.fedlens.sdk.AGREED
import org.fedlens.sdk.ClientSettings
import org.fedlens.sdk.ClientState
import org.fedlens.sdk.Event
import org.fedlens.sdk.FedLensClient
import org.fedlens.sdk.Publishers.TrustServer
import org.fedlens.sdk.StateException
import org.fedlens.sdk.TransportException
import org.fedlens.sdk.client.FakeServer.Companion.refused
import org.fedlens.sdk.client.FakeServer.Companion.trainingPlan
import org.fedlens.sdk.store.JournalEntry
import org.fedlens.sdk.toHex
import org.junit.Assert.assertArrayEquals
import org.junit.Assert.assertEquals
import org.junit.Assert.assertFalse
import org.junit.Assert.assertThrows
import org.junit.Assert.assertTrue
import org.junit.Rule
import org.junit.Test
import org.junit.rules.TemporaryFolder
import org.junit.rules.Timeout
import java.io.File

/** A client that leaves, with its server's knowledge or without. */
class ForgettingTest {
    @get:Rule
    val folder = TemporaryFolder()

    @get:Rule
    val timeout: Timeout = Timeout.seconds(60)

    private fun clientOf(server: FakeServer) = ClientRun(server, folder.root)

    @Test
    fun `forgetting deletes the identity on both sides, and the next call makes another`() {
        val run = clientOf(FakeServer(rounds = 3))
        run.client().use { client ->
            runBlocking { client.runOnce() }
            val before = client.clientId
            assertTrue(runBlocking { client.forget() })
            assertEquals(emptySet<String>(), run.server.enrolled)
            assertFalse(before.contentEquals(client.clientId))
            assertEquals(emptyList<JournalEntry>(), client.journal.entries())
            assertEquals(emptyList<String>(), runBlocking { client.classNames() })
            assertEquals(emptyList<String>(), File(folder.root, "cache/parts").list()?.toList())
            runBlocking { client.runOnce() }
        }
        // Features were deleted too.
        assertEquals(2, run.events<Event.Embedded>().count { it.done == it.total })
    }

    @Test
    fun `a client that was never enrolled is forgotten without a server`() {
        val run = clientOf(FakeServer())
        run.client().use { assertFalse(runBlocking { it.forget() }) }
        assertEquals(emptyList<String>(), run.server.calls)
    }

    @Test
    fun `forgetting ends a training that is under way`() {
        val run = clientOf(FakeServer(trainingPlan(epochs = 1_000_000)))
        val training = CompletableDeferred<Unit>()
        run.onEvent = { if (it is Event.Trained) training.complete(Unit) }
        val callbacks = Recorder()
        run.client().use { client ->
            client.start(callbacks)
            runBlocking {
                training.await()
                client.forget()
            }
            callbacks.awaitEnd()
        }
        assertEquals(emptyMap<Long, ByteArray>(), run.server.updates)
    }

    @Test
    fun `a client whose enrolment got no response is forgotten by the server too`() {
        val run = clientOf(FakeServer())
        run.client().use { client ->
            run.server.trouble("enrol") {
                run.server.enrolled += client.clientId.toHex()
                throw TransportException(TransportException.Reason.UNREACHABLE, "the response is lost")
            }
            assertThrows(TransportException::class.java) { runBlocking { client.runOnce() } }
            assertTrue(runBlocking { client.forget() })
        }
        assertEquals(emptySet<String>(), run.server.enrolled)
    }

    @Test
    fun `a client that is to train other models now is forgotten by the server too`() {
        val run = clientOf(FakeServer())
        run.client().use { runBlocking { it.runOnce() } }
        val settings = ClientSettings(TrustServer, policy = { AGREED }, models = listOf("other"))
        run.client(settings).use { assertTrue(runBlocking { it.forget() }) }
        assertEquals(emptySet<String>(), run.server.enrolled)
    }

    @Test
    fun `a client that the server never took is forgotten without it`() {
        val run = clientOf(FakeServer())
        run.client(ClientSettings(TrustServer, "no")).use { client ->
            assertThrows(TransportException::class.java) { runBlocking { client.runOnce() } }
            assertFalse(runBlocking { client.forget() })
        }
        assertEquals(listOf("enrol"), run.server.calls)
    }

    @Test
    fun `a client that the server knows no more, as after a lost response, is forgotten here`() {
        val run = clientOf(FakeServer())
        run.client().use { client ->
            runBlocking { client.runOnce() }
            val before = client.clientId
            run.server.enrolled.clear()
            assertFalse(runBlocking { client.forget() })
            assertFalse(before.contentEquals(client.clientId))
        }
        assertEquals(1, run.server.count("forget"))
    }

    @Test
    fun `a revoked client is not forgotten, but can be erased here`() {
        val run = clientOf(FakeServer(rounds = 2))
        run.client().use { client ->
            runBlocking { client.runOnce() }
            val before = client.clientId
            run.server.trouble("forget") { throw refused("forbidden", "revoked by the operator") }
            assertThrows(TransportException::class.java) { runBlocking { client.forget() } }
            assertArrayEquals(before, client.clientId)
            runBlocking { client.eraseHere() }
            assertFalse(before.contentEquals(client.clientId))
            assertEquals(emptyList<JournalEntry>(), client.journal.entries())
            assertEquals(ClientState.Idle, client.state.value)
        }
        assertEquals(1, run.server.count("forget"))
        assertEquals(1, run.server.enrolled.size)
    }

    @Test
    fun `a client that cannot be opened can be erased here, and enrols anew`() {
        val run = clientOf(FakeServer(rounds = 2))
        run.client().use { runBlocking { it.runOnce() } }
        File(folder.root, "secret").writeBytes(ByteArray(5))
        run.client().use { client ->
            assertThrows(StateException::class.java) { runBlocking { client.forget() } }
            runBlocking { client.eraseHere() }
            assertTrue(runBlocking { client.runOnce() } is Event.RoundReported)
        }
        assertEquals(2, run.server.enrolled.size)
    }

    @Test
    fun `what is begun while a client leaves ends with it, and what comes later is done by the next one`() {
        val late = listOf<suspend (FedLensClient) -> Any>({ it.runOnce() }, { it.embedNew() })
        val run = clientOf(FakeServer(rounds = 2))
        run.client().use { client ->
            runBlocking { client.checkIn() }
            for (call in late) {
                val leaving = CompletableDeferred<Unit>()
                val begun = CompletableDeferred<Unit>()
                val held = CompletableDeferred<Unit>()
                run.server.trouble("forget") {
                    leaving.complete(Unit)
                    held.await()
                }
                for (request in listOf("check-in", "blob")) {
                    run.server.trouble(request) {
                        begun.complete(Unit)
                        awaitCancellation()
                    }
                }
                runBlocking {
                    supervisorScope {
                        val forgetting = async { client.forget() }
                        leaving.await()
                        val other = async { call(client) }
                        begun.await()
                        held.complete(Unit)
                        forgetting.await()
                        val end = runCatching { other.await() }.exceptionOrNull()
                        assertTrue("$end", end is CancellationException)
                    }
                }
                run.server.untroubled()
                runBlocking { client.checkIn() }
            }
            assertTrue(runBlocking { client.runOnce() } is Event.RoundReported)
        }
    }
}
