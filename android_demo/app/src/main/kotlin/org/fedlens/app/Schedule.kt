package org.fedlens.app

import android.Manifest
import android.app.job.JobInfo
import android.app.job.JobScheduler
import android.content.ComponentName
import android.content.pm.PackageManager
import android.os.Build
import java.util.concurrent.TimeUnit

/** The schedule by which Android starts [LearnJob]. */
internal class Schedule(
    private val app: FedLensApp,
) {
    private val scheduler = app.getSystemService(JobScheduler::class.java)
    private val service = ComponentName(app, LearnJob::class.java)

    /** True while the job of *Learn now* is running. */
    var isKeptAlive = false

    /** Schedule or cancel background learning, as the settings say. */
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

    /** Schedule the job again if Android has dropped it, as after a forced stop. */
    fun restore() {
        if (scheduler.getPendingJob(REGULAR) == null) apply()
    }

    /** Keep the round of *Learn now* running when the user leaves the app. */
    fun keepAlive() {
        val job = JobInfo.Builder(NOW, service).setRequiredNetworkType(JobInfo.NETWORK_TYPE_ANY)
        when {
            Build.VERSION.SDK_INT >= Build.VERSION_CODES.UPSIDE_DOWN_CAKE -> askedForByUser(job)
            Build.VERSION.SDK_INT >= Build.VERSION_CODES.S -> urgent(job)
        }
        scheduler.schedule(job.build())
    }

    /** Cancel the pending job of *Learn now*, whose round has ended or is no longer wanted. */
    fun release() {
        // A running job ends with its round; cancelling it would stop the round.
        if (!isKeptAlive) scheduler.cancel(NOW)
    }

    /** Cancel both jobs. */
    fun cancelAll() {
        for (id in listOf(REGULAR, NOW)) scheduler.cancel(id)
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
        // WorkManager and its like count their ids up from 0.
        private const val FIRST = 0x4645_4400

        /** Id of the periodic job. */
        const val REGULAR = FIRST + 1

        /** Id of the job of *Learn now*. */
        const val NOW = FIRST + 2
    }
}
