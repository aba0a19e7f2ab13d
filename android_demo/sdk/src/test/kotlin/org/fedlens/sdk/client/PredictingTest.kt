package org.fedlens.sdk.client

import kotlinx.coroutines.CompletableDeferred
import kotlinx.coroutines.async
import kotlinx.coroutines.runBlocking
import org.fedlens.sdk.ClientState
import org.fedlens.sdk.EngineException
import org.fedlens.sdk.Event
import org.fedlens.sdk.TransportException
import org.fedlens.sdk.TransportException.Reason
import org.junit.Assert.assertEquals
import org.junit.Assert.assertFalse
import org.junit.Assert.assertThrows
import org.junit.Assert.assertTrue
import org.junit.Rule
import org.junit.Test
import org.junit.rules.TemporaryFolder
import org.junit.rules.Timeout
import java.util.concurrent.CountDownLatch

/** What the app may count on while a client learns, and on the road. */
class PredictingTest {
    @get:Rule
    val folder = TemporaryFolder()

    @get:Rule
    val timeout: Timeout = Timeout.seconds(60)

    private val server = FakeServer(rounds = 2)
    private val run by lazy { ClientRun(server, folder.newFolder("client")) }
    private val photo get() = run.photos.first().file

    @Test
    fun `a prediction does not wait for the training that is under way`() {
        val isTraining = CompletableDeferred<Unit>()
        val mayGoOn = CountDownLatch(1)
        run.onEvent = {
            if (it is Event.RoundStarted) {
                isTraining.complete(Unit)
                mayGoOn.await()
            }
        }
        run.client().use { client ->
            runBlocking {
                val round = async { client.runOnce() }
                isTraining.await()
                assertEquals(listOf("cat", "dog", "emu"), client.classNames())
                assertEquals(1.0, client.predict(photo).values.sum(), 1e-9)
                assertFalse(round.isCompleted)
                mayGoOn.countDown()
                assertTrue(round.await() is Event.RoundReported)
            }
        }
    }

    @Test
    fun `without an unmetered network an earlier model predicts, also after a restart`() {
        val found =
            run.client().use { client ->
                runBlocking {
                    client.runOnce()
                    client.predict(photo).also { client.checkIn() }
                }
            }
        val fetched = server.count("blob")
        run.hasUnmeteredNetwork = false
        run.client().use { client -> assertEquals(found, runBlocking { client.predict(photo) }) }
        assertEquals(fetched, server.count("blob"))

        run.hasUnmeteredNetwork = true
        run.client().use { client -> assertTrue(found != runBlocking { client.predict(photo) }) }
        assertEquals(fetched + 1, server.count("blob"))
    }

    @Test
    fun `an earlier model predicts where the newer one cannot be had`() {
        run.client().use { client ->
            runBlocking {
                client.runOnce()
                val found = client.predict(photo)
                client.checkIn()
                server.trouble("blob") { throw TransportException(Reason.UNREACHABLE, "no network") }
                assertEquals(found, client.predict(photo))
            }
        }
    }

    @Test
    fun `the first model does not come over a metered network unless the app wants it`() {
        run.hasUnmeteredNetwork = false
        run.client().use { client ->
            runBlocking { client.checkIn() }
            val error = assertThrows(TransportException::class.java) { runBlocking { client.predict(photo) } }
            assertEquals(Reason.NO_UNMETERED_NETWORK, error.reason)
            // The manifest.
            assertEquals(0, run.events<Event.Downloaded>().size)
            runBlocking { client.fetchModel() }
            assertEquals(1.0, runBlocking { client.predict(photo) }.values.sum(), 1e-9)
        }
    }

    @Test
    fun `the first model does not go on coming over a network that costs something by now`() {
        run.client().use { client ->
            runBlocking { client.checkIn() }
            val before = server.count("blob")
            server.trouble("blob") { run.hasUnmeteredNetwork = false }
            val error = assertThrows(TransportException::class.java) { runBlocking { client.predict(photo) } }
            assertEquals(Reason.NO_UNMETERED_NETWORK, error.reason)
            assertEquals(before + 1, server.count("blob"))
        }
    }

    @Test
    fun `without a runtime a client ends at once, and the server is not told of a failed round`() {
        run.engineOf = { throw EngineException(EngineException.Reason.RUNTIME_MISSING, "no library") }
        run.client().use { client ->
            assertThrows(EngineException::class.java) { runBlocking { client.run() } }
            assertEquals(ClientState.Failed("runtime_missing", "no library"), client.state.value)
        }
        assertEquals(0, server.failures.size)
        assertEquals(1, server.count("check-in"))
    }
}
