package org.fedlens.app

import android.app.job.JobInfo
import android.app.job.JobParameters
import android.app.job.JobScheduler
import org.fedlens.sdk.schedule.JobIds
import org.fedlens.sdk.schedule.LearningService
import org.fedlens.sdk.schedule.jobParameters
import org.robolectric.Robolectric
import org.robolectric.Shadows.shadowOf

/** Android's part in jobs: it starts what the user has asked for, ends what was cancelled, and forgets what is done. */
internal class PlayedJobs(
    private val app: TestApp,
) {
    private val scheduler get() = app.getSystemService(JobScheduler::class.java)
    private val running = LinkedHashMap<Int, Running>()

    // A job that comes again later.
    private var later: JobInfo? = null

    /** False while Android has no time for jobs. */
    var hasTime = true

    /** Ids of jobs that Android has stopped, in order. */
    val stopped = ArrayList<Int>()

    /** A job that has begun. */
    class Running(
        val info: JobInfo,
        val service: LearningService,
        val parameters: JobParameters,
    ) {
        val isFinished: Boolean get() = shadowOf(service).isJobFinished
        val comesAgain: Boolean get() = shadowOf(service).isRescheduleNeeded
    }

    /** The running job of *Learn now*. */
    val now: Running get() = running.getValue(NOW)

    /** Start a job that is scheduled. */
    fun start(id: Int): Running {
        val info = checkNotNull(scheduler.getPendingJob(id)) { "job $id is not scheduled" }
        val service = Robolectric.buildService(LearningService::class.java).create().bind().get()
        val job = Running(info, service, jobParameters(id))
        running[id] = job
        check(service.onStartJob(job.parameters)) { "job $id has nothing to do" }
        return job
    }

    /** Stop a job; true if it is to come again. */
    fun stop(id: Int): Boolean {
        val job = running.remove(id) ?: error("job $id is not running")
        stopped += id
        if (id == NOW) later = scheduler.getPendingJob(NOW)
        return job.service.onStopJob(job.parameters)
    }

    /** Do what is to be done now. */
    fun turn() {
        for ((id, job) in running.toList()) {
            if (job.isFinished) {
                running.remove(id)
                // The user may have asked for another one meanwhile.
                if (id != NOW || scheduler.getPendingJob(NOW) !== job.info) continue
                if (job.comesAgain) later = job.info else scheduler.cancel(NOW)
            } else if (scheduler.getPendingJob(id) == null) {
                stop(id)
            }
        }
        val asked = scheduler.getPendingJob(NOW)
        if (hasTime && asked != null && asked !== later && NOW !in running) start(NOW)
    }

    /** The process has ended with what ran in it. */
    fun forget() = running.clear()

    companion object {
        val REGULAR = JobIds().periodic
        val NOW = JobIds().now
    }
}
