package org.fedlens.app

import android.Manifest
import android.app.job.JobInfo
import android.app.job.JobScheduler
import android.content.ComponentName
import android.content.pm.PackageManager
import android.os.Build
import java.util.concurrent.TimeUnit

/** When Android starts [LearnJob]. */
internal class Schedule(
    private val app: FedLensApp,
) {
    private val scheduler = app.getSystemService(JobScheduler::class.java)
    private val service = ComponentName(app, LearnJob::class.java)

    /** The job of *Learn now* has started and not ended. */
    var isKeptAlive = false

    /** Makes background learning what the settings say it is. */
    fun apply() {
        val settings = app.settings
        if (!settings.learnsInBackground || !app.learning.isAllowed) {
            scheduler.cancel(REGULAR)
            return
        }
        val network =
            if (settings.onlyUnmetered) JobInfo.NETWORK_TYPE_UNMETERED else JobInfo.NETWORK_TYPE_ANY
        scheduler.schedule(
            JobInfo
                .Builder(REGULAR, service)
                .setPeriodic(TimeUnit.HOURS.toMillis(1))
                .setRequiredNetworkType(network)
                .setRequiresCharging(settings.onlyWhileCharging)
                .setRequiresDeviceIdle(settings.onlyWhileIdle)
                .setPersisted(maySurviveRestart())
                .build(),
        )
    }

    /** Brings the job back where Android has dropped it, as when the owner has forced the app to stop. */
    fun restore() {
        if (scheduler.getPendingJob(REGULAR) == null) apply()
    }

    /** Has the round that *Learn now* has begun go on when the app is left. */
    fun keepAlive() {
        val job = JobInfo.Builder(NOW, service).setRequiredNetworkType(JobInfo.NETWORK_TYPE_ANY)
        when {
            Build.VERSION.SDK_INT >= Build.VERSION_CODES.UPSIDE_DOWN_CAKE -> askedForByUser(job)
            Build.VERSION.SDK_INT >= Build.VERSION_CODES.S -> urgent(job)
        }
        scheduler.schedule(job.build())
    }

    /** Nobody wants that round to go on, or it has ended: its job is not to begin it again. */
    fun release() {
        // One that has started ends by itself with its round; cancelling it would be to stop it.
        if (!isKeptAlive) scheduler.cancel(NOW)
    }

    /** Nothing is started any more. */
    fun cancelAll() {
        scheduler.cancelAll()
    }

    private fun maySurviveRestart(): Boolean {
        val permission = Manifest.permission.RECEIVE_BOOT_COMPLETED
        return app.checkSelfPermission(permission) == PackageManager.PERMISSION_GRANTED
    }

    @NewerAndroid(Build.VERSION_CODES.UPSIDE_DOWN_CAKE)
    private fun askedForByUser(job: JobInfo.Builder) {
        job.setUserInitiated(true)
    }

    @NewerAndroid(Build.VERSION_CODES.S)
    private fun urgent(job: JobInfo.Builder) {
        job.setExpedited(true)
    }

    companion object {
        /** Number of the job that comes again and again. */
        const val REGULAR = 1

        /** Number of the job of *Learn now*. */
        const val NOW = 2
    }
}
