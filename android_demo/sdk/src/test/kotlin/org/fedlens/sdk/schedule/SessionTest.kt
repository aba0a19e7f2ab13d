package org.fedlens.sdk.schedule

import android.app.Application
import android.os.PowerManager
import kotlinx.coroutines.Job
import kotlinx.coroutines.awaitCancellation
import kotlinx.coroutines.runBlocking
import org.fedlens.proto.v1.CheckInResponse
import org.fedlens.proto.v1.Wait
import org.fedlens.proto.v1.WaitReason
import org.fedlens.sdk.EngineException
import org.fedlens.sdk.Event
import org.fedlens.sdk.TransportException
import org.fedlens.sdk.client.ClientRun
import org.fedlens.sdk.client.FakeServer
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

    private fun waitNext(retryAfterMs: Int) {
        val wait = Wait.newBuilder().setReason(WaitReason.WAIT_REASON_NEXT_ROUND).setRetryAfterMs(retryAfterMs)
        server.trouble("check-in") { CheckInResponse.newBuilder().setWait(wait).build() }
    }
}
