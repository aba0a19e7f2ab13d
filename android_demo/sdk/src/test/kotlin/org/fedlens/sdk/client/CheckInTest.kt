package org.fedlens.sdk.client

import kotlinx.coroutines.CoroutineStart
import kotlinx.coroutines.async
import kotlinx.coroutines.runBlocking
import kotlinx.coroutines.yield
import org.fedlens.proto.v1.CheckInResponse
import org.fedlens.proto.v1.CurrentModel
import org.fedlens.proto.v1.Finished
import org.fedlens.proto.v1.Wait
import org.fedlens.proto.v1.WaitReason
import org.fedlens.sdk.AGREED
import org.fedlens.sdk.ClientSettings
import org.fedlens.sdk.ClientState
import org.fedlens.sdk.Event
import org.fedlens.sdk.Publishers.TrustServer
import org.fedlens.sdk.TransportException
import org.fedlens.sdk.client.FakeServer.Companion.TASK
import org.fedlens.sdk.plan.Plans
import org.junit.Assert.assertEquals
import org.junit.Assert.assertThrows
import org.junit.Assert.assertTrue
import org.junit.Rule
import org.junit.Test
import org.junit.rules.TemporaryFolder
import org.junit.rules.Timeout

/** The models that a client learns of when it checks in, with and without taking part. */
class CheckInTest {
    @get:Rule
    val folder = TemporaryFolder()

    @get:Rule
    val timeout: Timeout = Timeout.seconds(60)

    private fun clientOf(
        server: FakeServer,
        name: String = "client",
    ) = ClientRun(server, folder.newFolder(name))

    private fun modelOf(
        server: FakeServer,
        task: Long,
    ): CurrentModel =
        server.assignment().let {
            CurrentModel
                .newBuilder()
                .setTask(task)
                .setBundle(it.bundle)
                .addAllSets(it.setsList)
                .addAllRules(Plans.startRules(it.localPlan))
                .build()
        }

    @Test
    fun `whatever the server's response, a check-in learns of the model and begins no work`() {
        val responses =
            mapOf<String, (FakeServer) -> CheckInResponse>(
                "assignment" to { CheckInResponse.newBuilder().setAssignment(it.assignment()).build() },
                "wait" to {
                    val wait = Wait.newBuilder().setReason(WaitReason.WAIT_REASON_NEXT_ROUND).setRetryAfterMs(60_000)
                    CheckInResponse.newBuilder().setWait(wait.addModels(modelOf(it, TASK))).build()
                },
                "finished" to {
                    val finished = Finished.newBuilder().addModels(modelOf(it, TASK))
                    CheckInResponse.newBuilder().setFinished(finished).build()
                },
            )
        for ((name, respond) in responses) {
            val run = clientOf(FakeServer(), name)
            run.server.trouble("check-in") { respond(run.server) }
            run.client().use { client ->
                runBlocking { client.checkIn() }
                assertEquals(name, listOf("enrol", "check-in"), run.server.calls)
                assertEquals(name, ClientState.Idle, client.state.value)
                assertEquals(name, emptyList<Long>(), run.pauses)
                assertEquals(name, listOf("cat", "dog", "emu"), runBlocking { client.classNames() })
            }
        }
    }

    @Test
    fun `a check-in is not held by the server`() {
        val run = clientOf(FakeServer())
        run.client().use { runBlocking { it.checkIn() } }
        assertEquals(0, run.server.checkIns.single().holdMs)
    }

    @Test
    fun `an unknown kind of response is named, and what was learnt before stays`() {
        val run = clientOf(FakeServer())
        run.client().use { client ->
            runBlocking { client.checkIn() }
            run.server.trouble("check-in") { CheckInResponse.getDefaultInstance() }
            val error = assertThrows(TransportException::class.java) { runBlocking { client.checkIn() } }
            assertEquals(TransportException.Reason.BAD_ANSWER, error.reason)
            assertEquals("bad_answer", (client.state.value as ClientState.Failed).reason)
            assertEquals(3, runBlocking { client.classNames() }.size)
        }
    }

    @Test
    fun `a server that has forgotten the client gets it back, if there is a token`() {
        val run = clientOf(FakeServer())
        run.client().use { client ->
            runBlocking { client.checkIn() }
            run.server.enrolled.clear()
            runBlocking { client.checkIn() }
            assertEquals(2, run.server.count("enrol"))
        }
        run.server.enrolled.clear()
        run.client(ClientSettings(TrustServer, policy = { AGREED })).use { client ->
            val error = assertThrows(TransportException::class.java) { runBlocking { client.checkIn() } }
            assertEquals("unauthorised", error.code)
        }
    }

    @Test
    fun `a check-in waits for a run that is under way`() {
        val run = clientOf(FakeServer())
        val held = run.server.hold("check-in")
        run.client().use { client ->
            runBlocking {
                val running = async { client.run() }
                held.arrived.await()
                val checking = async(start = CoroutineStart.UNDISPATCHED) { client.checkIn() }
                // The client's thread, which is free, does this after it has met the check-in.
                client.embedNew()
                yield()
                assertEquals(1, run.server.count("check-in"))
                held.released.complete(Unit)
                running.await()
                checking.await()
            }
        }
        assertEquals(3, run.server.count("check-in"))
    }

    @Test
    fun `an assignment says nothing about the models of other tasks`() {
        val run = clientOf(FakeServer())
        val photo = run.photos.first().file
        val finished = Finished.newBuilder().addModels(modelOf(run.server, TASK + 1))
        run.server.trouble("check-in") { CheckInResponse.newBuilder().setFinished(finished).build() }
        run.client().use { client ->
            runBlocking {
                client.checkIn()
                client.checkIn()
                for (task in listOf(TASK, TASK + 1)) assertEquals(3, client.predict(photo, task).size)
            }
        }
    }

    @Test
    fun `after one round an app can predict, with and without photos`() {
        for (name in listOf("with photos", "without photos")) {
            val run = clientOf(FakeServer(rounds = 2), name)
            val photo = run.photos.first().file
            if (name == "without photos") run.photos.clear()
            run.client().use { client ->
                runBlocking {
                    val outcome = client.runOnce()
                    assertEquals(name, run.photos.isEmpty(), outcome is Event.RoundFailed)
                    assertEquals(name, listOf("cat", "dog", "emu"), client.classNames())
                    assertEquals(name, 1.0, client.predict(photo).values.sum(), 1e-9)
                }
            }
        }
    }

    @Test
    fun `after one round photos can be embedded as they arrive`() {
        val run = clientOf(FakeServer(rounds = 2))
        val later = run.photos.removeAt(0)
        run.client().use { client ->
            runBlocking {
                client.runOnce()
                run.photos += later
                assertEquals(1, client.embedNew())
            }
        }
        assertTrue(run.server.updates.isNotEmpty())
    }
}
