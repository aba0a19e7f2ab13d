package org.fedlens.sdk.client

import com.google.protobuf.ByteString
import kotlinx.coroutines.runBlocking
import org.fedlens.proto.v1.FailureReason
import org.fedlens.sdk.AGREED
import org.fedlens.sdk.ClientSettings
import org.fedlens.sdk.Event
import org.fedlens.sdk.Publisher
import org.fedlens.sdk.Publishers
import org.fedlens.sdk.Signer
import org.fedlens.sdk.StateException
import org.junit.Assert.assertEquals
import org.junit.Assert.assertThrows
import org.junit.Assert.assertTrue
import org.junit.Rule
import org.junit.Test
import org.junit.rules.TemporaryFolder
import org.junit.rules.Timeout
import java.io.File

/** A client whose app brings the keys of publishers. */
class PublishersTest {
    @get:Rule
    val folder = TemporaryFolder()

    @get:Rule
    val timeout: Timeout = Timeout.seconds(60)

    private val maker = Signer()
    private val floors by lazy { File(folder.root, "floors.sqlite3") }

    private fun runOf(server: FakeServer) = ClientRun(server, folder.newFolder(), floors)

    private fun settings(keys: () -> List<Publisher> = { listOf(maker.publisher) }) =
        ClientSettings(Publishers.Keys(keys), FakeServer.TOKEN, { AGREED }, audience = setOf("zoo"))

    @Test
    fun `signed work for the app is carried out, and the rest is given up with reason policy`() {
        val run = runOf(FakeServer(rounds = 3))
        run.client(settings()).use { client ->
            assertTrue(runBlocking { client.runOnce() } is Event.RoundFailed)
            val failure = run.server.failures.getValue(1)
            assertEquals(FailureReason.FAILURE_REASON_POLICY, failure.reason)
            assertTrue(failure.detail, failure.detail.contains("nobody has signed bundle"))
            for (audience in listOf("zoo", ClientRun.APPLICATION)) {
                run.server.statement = maker.sign(run.server.bundle.id, audience = audience)
                assertTrue(runBlocking { client.runOnce() } is Event.RoundReported)
            }
        }
    }

    @Test
    fun `the model of an assignment is predicted with after a restart, by its statement, until its key is revoked`() {
        val run = runOf(FakeServer(rounds = 2))
        run.server.statement = maker.sign(run.server.bundle.id)
        run.client(settings()).use { runBlocking { it.runOnce() } }
        val photo = run.photos[0].file
        run.client(settings()).use { assertEquals(3, runBlocking { it.predict(photo) }.size) }
        run.client(settings { emptyList() }).use { client ->
            val error = assertThrows(Exception::class.java) { runBlocking { client.predict(photo) } }
            assertTrue("$error", error.message.orEmpty().endsWith("trusted is nobody"))
        }
    }

    @Test
    fun `a floor holds for another server, and after the client was forgotten`() {
        val (old, other) = runOf(FakeServer()) to runOf(FakeServer())
        old.server.statement = maker.sign(old.server.bundle.id, serial = 5, floor = 5)
        old.client(settings()).use { client ->
            runBlocking { client.runOnce() }
            runBlocking { client.forget() }
        }
        other.server.statement = maker.sign(other.server.bundle.id, serial = 4)
        val outcome = other.client(settings()).use { runBlocking { it.runOnce() } }
        assertTrue("$outcome", (outcome as Event.RoundFailed).detail.endsWith("withdrew those below 5"))
    }

    @Test
    fun `floors that cannot be read stop the client until everything is erased here`() {
        val run = runOf(FakeServer())
        run.server.statement = maker.sign(run.server.bundle.id)
        floors.writeText("no database ".repeat(1_000))
        run.client(settings()).use { client ->
            val error = assertThrows(StateException::class.java) { runBlocking { client.runOnce() } }
            assertEquals(StateException.Reason.DAMAGED, error.reason)
            runBlocking { client.eraseHere() }
            assertTrue(runBlocking { client.runOnce() } is Event.RoundReported)
        }
    }

    @Test
    fun `whoever trusts the server remembers nothing of publishers`() {
        val run = runOf(FakeServer())
        run.server.statement = ByteString.copyFromUtf8("whatever it is")
        run.client().use { runBlocking { it.runOnce() } }
        assertEquals(setOf(1L), run.server.updates.keys)
        assertTrue(!floors.exists())
    }
}
