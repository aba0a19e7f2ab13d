package org.fedlens.sdk.schedule

import android.Manifest
import android.app.Application
import android.app.job.JobInfo
import android.app.job.JobScheduler
import android.content.ComponentName
import android.os.Build
import org.fedlens.sdk.onAndroid
import org.junit.Assert.assertEquals
import org.junit.Assert.assertFalse
import org.junit.Assert.assertNull
import org.junit.Assert.assertThrows
import org.junit.Assert.assertTrue
import org.junit.Test
import org.junit.runner.RunWith
import org.robolectric.RobolectricTestRunner
import org.robolectric.RuntimeEnvironment
import org.robolectric.Shadows.shadowOf
import org.robolectric.annotation.Config

/** What Android is asked for. */
@RunWith(RobolectricTestRunner::class)
@Config(sdk = [34, 35])
class LearningJobsTest {
    private val app: Application = RuntimeEnvironment.getApplication()
    private val scheduler = checkNotNull(app.getSystemService(JobScheduler::class.java))
    private val shadow = shadowOf(scheduler)
    private val ids = JobIds()

    private fun jobs(
        conditions: Conditions = Conditions(),
        ids: JobIds = this.ids,
        isShown: Boolean = true,
    ) = LearningJobs(app, conditions, ids, isShown)

    @Test
    fun `by default learning waits until it costs the owner nothing`() {
        jobs().schedule()
        val job = checkNotNull(scheduler.getPendingJob(ids.periodic))
        assertTrue(job.isPeriodic && job.isRequireCharging && job.isRequireDeviceIdle)
        assertTrue(job.isRequireBatteryNotLow && job.isRequireStorageNotLow)
        assertEquals(JobInfo.NETWORK_TYPE_UNMETERED, networkOf(job))
        assertFalse("without the permission to start with the phone", job.isPersisted)
    }

    @Test
    fun `each condition can be left out, and a failed job comes again later each time`() {
        shadowOf(app).grantPermissions(Manifest.permission.RECEIVE_BOOT_COMPLETED)
        val none = Conditions(3_600_000, false, false, false, false, false, firstBackoffMs = 20_000)
        jobs(none).schedule()
        val job = checkNotNull(scheduler.getPendingJob(ids.periodic))
        assertFalse(job.isRequireCharging || job.isRequireDeviceIdle)
        assertFalse(job.isRequireBatteryNotLow || job.isRequireStorageNotLow)
        assertEquals(JobInfo.NETWORK_TYPE_ANY, networkOf(job))
        assertEquals(3_600_000, job.intervalMillis)
        assertEquals(20_000, job.initialBackoffMillis)
        assertEquals(JobInfo.BACKOFF_POLICY_EXPONENTIAL, job.backoffPolicy)
        assertTrue(job.isPersisted)
    }

    @Test
    fun `conditions that Android would change in silence are refused`() {
        assertThrows(IllegalArgumentException::class.java) { Conditions(periodMs = 899_999) }
        assertThrows(IllegalArgumentException::class.java) { Conditions(firstBackoffMs = 9_999) }
        assertThrows(IllegalArgumentException::class.java) { Conditions(hottest = 7) }
        assertThrows(IllegalArgumentException::class.java) { JobIds(1, 1) }
    }

    @Test
    fun `jobs have the ids that the app chose, and no other job of the app is touched`() {
        val chosen = JobIds(periodic = 70, now = 71)
        val other = JobInfo.Builder(1, ComponentName(app, "org.example.OtherJob")).setMinimumLatency(1).build()
        scheduler.schedule(other)
        val jobs = jobs(ids = chosen)
        jobs.schedule()
        assertTrue(jobs.scheduleNow())
        assertEquals(setOf(1, 70, 71), scheduler.allPendingJobs.map { it.id }.toSet())
        assertEquals(Background.REQUESTED, jobs.status.value.background)
        jobs.cancel()
        assertEquals(listOf(1), scheduler.allPendingJobs.map { it.id })
        assertEquals(Background.OFF, jobs.status.value.background)
    }

    @Test
    fun `conditions that change apply to what is scheduled, and schedule nothing by themselves`() {
        val jobs = jobs()
        jobs.conditions = Conditions(charging = false)
        assertFalse(jobs.isScheduled)
        jobs.schedule()
        assertFalse(checkNotNull(scheduler.getPendingJob(ids.periodic)).isRequireCharging)
        jobs.conditions = Conditions(unmetered = false)
        val job = checkNotNull(scheduler.getPendingJob(ids.periodic))
        assertTrue(job.isRequireCharging)
        assertEquals(JobInfo.NETWORK_TYPE_ANY, networkOf(job))
    }

    @Test
    fun `a round that was asked for is requested until it is stopped, also after a restart, and the period stays`() {
        val jobs = jobs()
        jobs.schedule()
        jobs.scheduleNow()
        assertEquals(Background.REQUESTED, jobs.status.value.background)
        val again = jobs()
        assertEquals(Background.REQUESTED, again.status.value.background)
        again.stop()
        assertEquals(Background.SCHEDULED, again.status.value.background)
        assertNull(scheduler.getPendingJob(ids.now))

        again.scheduleNow()
        again.unschedule()
        assertEquals(Background.REQUESTED, again.status.value.background)
        assertEquals(listOf(ids.now), scheduler.allPendingJobs.map { it.id })
    }

    @Test
    fun `what is scheduled already is known after a restart, and is not scheduled again`() {
        jobs().schedule()
        val again = jobs()
        assertEquals(Background.SCHEDULED, again.status.value.background)
        shadow.failOnJob(ids.periodic)
        again.schedule()
        assertEquals(Background.SCHEDULED, again.status.value.background)
    }

    @Test
    fun `learning that the user asked for lasts, if Android and the app allow it`() {
        shadowOf(app).grantPermissions(Manifest.permission.RUN_USER_INITIATED_JOBS)
        jobs().scheduleNow()
        val lasting = checkNotNull(scheduler.getPendingJob(ids.now))
        assertTrue(lasting.isUserInitiated && !lasting.isExpedited)

        jobs(isShown = false).scheduleNow()
        assertTrue(checkNotNull(scheduler.getPendingJob(ids.now)).isExpedited)

        shadowOf(app).denyPermissions(Manifest.permission.RUN_USER_INITIATED_JOBS)
        jobs().scheduleNow()
        assertTrue(checkNotNull(scheduler.getPendingJob(ids.now)).isExpedited)
    }

    @Test
    fun `older phones get the best type that they know`() {
        shadowOf(app).grantPermissions(Manifest.permission.RUN_USER_INITIATED_JOBS)
        for ((level, isExpedited) in listOf(Build.VERSION_CODES.S to true, Build.VERSION_CODES.R to false)) {
            onAndroid(level) { jobs().scheduleNow() }
            val job = checkNotNull(scheduler.getPendingJob(ids.now))
            assertEquals(isExpedited, job.isExpedited)
            assertFalse(job.isUserInitiated)
        }
    }

    @Test
    fun `where Android takes no job the app learns of it`() {
        shadow.failOnJob(ids.periodic)
        shadow.failOnJob(ids.now)
        val jobs = jobs()
        jobs.schedule()
        assertEquals(Background.OUT_OF_QUOTA, jobs.status.value.background)
        assertFalse(jobs.scheduleNow())
        assertNull(scheduler.getPendingJob(ids.periodic))
    }

    // What stands in its place tells more than there is to ask here.
    @Suppress("DEPRECATION")
    private fun networkOf(job: JobInfo): Int = job.networkType
}
