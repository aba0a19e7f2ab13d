package org.fedlens.sdk.schedule

import android.app.Application
import android.os.PowerManager
import kotlinx.coroutines.CompletableDeferred
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.Job
import kotlinx.coroutines.async
import kotlinx.coroutines.awaitCancellation
import kotlinx.coroutines.runBlocking
import kotlinx.coroutines.withTimeout
import org.fedlens.proto.v1.CheckInResponse
import org.fedlens.proto.v1.Wait
import org.fedlens.proto.v1.WaitReason
import org.fedlens.sdk.ClientState
import org.fedlens.sdk.EngineException
import org.fedlens.sdk.Event
import org.fedlens.sdk.FedLensClient
import org.fedlens.sdk.TransportException
import org.fedlens.sdk.client.ClientRun
import org.fedlens.sdk.client.FakeServer
import org.fedlens.sdk.engine.CountedCrashes
import org.fedlens.sdk.engine.ProgramEngine
import org.fedlens.sdk.engine.child.FakePhone
import org.fedlens.sdk.engine.child.SeparateRuntime
import org.junit.Assert.assertEquals
import org.junit.Assert.assertFalse
import org.junit.Assert.assertTrue
import org.junit.Rule
import org.junit.Test
import org.junit.rules.TemporaryFolder
import org.junit.runner.RunWith
import org.robolectric.RobolectricTestRunner
import org.robolectric.RuntimeEnvironment
import org.robolectric.Shadows.shadowOf
import org.robolectric.annotation.Config

/** How a job's work ends, and whether it comes again. */
@RunWith(RobolectricTestRunner::class)
@Config(sdk = [35])
class SessionTest {
    @get:Rule
    val folder = TemporaryFolder()

    private val app: Application = RuntimeEnvironment.getApplication()
    private val power = shadowOf(app.getSystemService(PowerManager::class.java))
    private val jobs = LearningJobs(app, Conditions(), JobIds(), isShown = false)
    private val server = FakeServer(rounds = 2)
    private val run by lazy { ClientRun(server, folder.newFolder("client")) }

    private fun learn(isAskedFor: Boolean = false): Boolean =
        run.client().use { client ->
            val work = Job()
            jobs.begin(jobs.ids.periodic, work)
            val ending = runBlocking { Session(app, client, jobs.conditions.hottest).learn(isAskedFor) }
            assertTrue(jobs.end(jobs.ids.periodic, work, ending))
            ending.comesAgain
        }

    @Test
    fun `a background job takes round after round, one that was asked for takes one`() {
        jobs.schedule()
        assertFalse(learn(isAskedFor = true))
        assertEquals(1, server.updates.size)
        assertFalse(learn())
        assertEquals(2, server.updates.size)
        assertEquals(Background.SCHEDULED, jobs.status.value.background)
    }

    @Test
    fun `a hot phone begins nothing, and one that gets hot ends what it does`() {
        power.setCurrentThermalStatus(PowerManager.THERMAL_STATUS_MODERATE)
        assertTrue(learn())
        assertEquals(Background.TOO_HOT, jobs.status.value.background)
        assertEquals(0, server.calls.size)

        power.setCurrentThermalStatus(PowerManager.THERMAL_STATUS_LIGHT)
        run.onEvent = {
            if (it is Event.RoundStarted) power.setCurrentThermalStatus(PowerManager.THERMAL_STATUS_SEVERE)
        }
        assertTrue(learn())
        assertEquals(Background.TOO_HOT, jobs.status.value.background)

        power.setCurrentThermalStatus(PowerManager.THERMAL_STATUS_NONE)
        run.onEvent = {}
        assertFalse(learn())
        assertEquals(2, server.updates.size)
    }

    @Test
    fun `a background job does not wait for a round, one that was asked for waits a little`() {
        run.duringPause = { awaitCancellation() }
        waitNext(1_000)
        assertFalse(learn())
        assertEquals(1, server.count("check-in"))

        run.duringPause = {}
        waitNext(1)
        assertFalse(learn(isAskedFor = true))
        assertEquals(1, server.updates.size)

        // The last one, because the client remembers for how long it was told to wait.
        run.duringPause = { awaitCancellation() }
        waitNext(600_000)
        assertFalse(learn(isAskedFor = true))
        assertEquals(1, server.updates.size)
    }

    @Test
    fun `a server that is away is asked again by a later job`() {
        server.trouble("check-in") { throw TransportException(TransportException.Reason.UNREACHABLE, "no network") }
        assertTrue(learn())
        assertEquals(Background.OFF, jobs.status.value.background)
    }

    @Test
    fun `what waiting does not resolve ends the jobs`() {
        jobs.schedule()
        run.engineOf = { throw EngineException(EngineException.Reason.RUNTIME_MISSING, "no library") }
        assertFalse(learn())
        assertFalse(jobs.isScheduled)
        assertEquals(Background.GIVEN_UP, jobs.status.value.background)
    }

    @Test
    fun `a process for programs that starts too slowly is tried again by a later job`() {
        jobs.schedule()
        val phone = FakePhone { _, _, _ -> error("no process starts") }
        phone.stuck = setOf("IsolatedProgramService", "ProgramService")
        for (mustBeIsolated in listOf(true, false)) {
            run.engineOf = { bundle ->
                val runtime = SeparateRuntime(phone, "scripted 1", mustBeIsolated, limitMs = 1)
                ProgramEngine(bundle, runtime, folder.newFolder(), CountedCrashes())
            }
            assertTrue(learn())
            assertTrue(jobs.isScheduled)
        }
        assertEquals("runtime_missing", (jobs.status.value.left as ClientState.Failed).reason)
    }

    @Test
    fun `a job ends when somebody else ends what the client does`() {
        val ways =
            mapOf<String, suspend (FedLensClient) -> Unit>(
                "forget" to { it.forget() },
                "erase" to { it.eraseHere() },
                "close" to { it.close() },
            )
        for ((name, end) in ways) {
            val arrived = CompletableDeferred<Unit>()
            server.trouble("check-in") {
                arrived.complete(Unit)
                awaitCancellation()
            }
            run.client().use { client ->
                runBlocking {
                    val learning = async(Dispatchers.Default) { Session(app, client, Int.MAX_VALUE).learn(false) }
                    arrived.await()
                    end(client)
                    assertFalse(name, withTimeout(5_000) { learning.await() }.comesAgain)
                }
            }
        }
    }

    @Test
    fun `a job without memory ends, and the app does not`() {
        run.engineOf = { throw OutOfMemoryError("the test's") }
        assertFalse(learn())
        assertTrue("${jobs.status.value.left}", jobs.status.value.left is ClientState.Failed)
    }

    @Test
    fun `the check-in after a round that was asked for offers no photos, so that it takes no place`() {
        assertFalse(learn(isAskedFor = true))
        val train = run.photos.count { !it.isTest }.toLong()
        assertEquals(listOf(train, 0L), server.checkIns.map { it.numExamples })
    }

    @Test
    fun `the server holds the check-ins of a job that was asked for, and of no other`() {
        assertFalse(learn())
        assertEquals(listOf(0, 0, 0), server.checkIns.map { it.holdMs })
        server.checkIns.clear()
        assertFalse(learn(isAskedFor = true))
        assertTrue(server.checkIns.first().holdMs > 0)
    }

    private fun waitNext(retryAfterMs: Int) {
        val wait = Wait.newBuilder().setReason(WaitReason.WAIT_REASON_NEXT_ROUND).setRetryAfterMs(retryAfterMs)
        server.trouble("check-in") { CheckInResponse.newBuilder().setWait(wait).build() }
    }
}
