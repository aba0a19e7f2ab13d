package org.fedlens.sdk.schedule

import android.Manifest
import android.app.Notification
import android.app.job.JobInfo
import android.app.job.JobScheduler
import android.content.ComponentName
import android.content.Context
import android.content.pm.PackageManager
import android.os.Build
import android.util.Log
import kotlinx.coroutines.flow.MutableStateFlow
import org.fedlens.sdk.NewerAndroid

/**
 * The jobs of [LearningService]: what Android is asked for, on each of its versions.
 *
 * @property notification Shows a job that the user has asked for; null: none.
 */
internal class LearningJobs(
    private val context: Context,
    val conditions: Conditions,
    val ids: JobIds,
    val notification: (() -> Pair<Int, Notification>)?,
) {
    private val scheduler = checkNotNull(context.getSystemService(JobScheduler::class.java))
    private val service = ComponentName(context, LearningService::class.java)

    /** What has become of the periodic job, or of the last one that ran. */
    val background = MutableStateFlow(Background.OFF)

    init {
        background.value = rest
    }

    /** True if the periodic job is scheduled. */
    val isScheduled: Boolean get() = scheduler.getPendingJob(ids.periodic) != null

    /** What becomes of the background when a job has ended. */
    val rest: Background get() = if (isScheduled) Background.SCHEDULED else Background.OFF

    /** Schedule the periodic job, unless it is scheduled under the same conditions. */
    fun schedule() {
        val job = periodic()
        if (scheduler.getPendingJob(ids.periodic) == job) return
        background.value = if (request(job)) Background.SCHEDULED else Background.OUT_OF_QUOTA
    }

    /** Cancel both jobs, and no other job of the app. A running one ends. */
    fun cancel() {
        for (id in listOf(ids.periodic, ids.now)) scheduler.cancel(id)
        background.value = Background.OFF
    }

    /**
     * Schedule a job for now, of the most lasting type that Android grants.
     *
     * @return False if it grants none.
     */
    fun scheduleNow(): Boolean = typesNow().any { request(it.build()) }

    private fun periodic(): JobInfo {
        val job =
            JobInfo
                .Builder(ids.periodic, service)
                .setPeriodic(conditions.periodMs)
                .setRequiredNetworkType(
                    if (conditions.unmetered) JobInfo.NETWORK_TYPE_UNMETERED else JobInfo.NETWORK_TYPE_ANY,
                ).setRequiresCharging(conditions.charging)
                .setRequiresDeviceIdle(conditions.idle)
                .setRequiresBatteryNotLow(conditions.batteryNotLow)
                .setRequiresStorageNotLow(conditions.storageNotLow)
                .setPersisted(isGranted(Manifest.permission.RECEIVE_BOOT_COMPLETED))
        // Android refuses both together.
        if (!conditions.idle) job.setBackoffCriteria(conditions.firstBackoffMs, JobInfo.BACKOFF_POLICY_EXPONENTIAL)
        return job.build()
    }

    /** A job for now, best type first. */
    private fun typesNow(): List<JobInfo.Builder> =
        buildList {
            if (Build.VERSION.SDK_INT >= Build.VERSION_CODES.UPSIDE_DOWN_CAKE &&
                mayBeUserInitiated()
            ) {
                add(userInitiated())
            }
            if (Build.VERSION.SDK_INT >= Build.VERSION_CODES.S) add(expedited())
            add(plain())
        }

    private fun plain(): JobInfo.Builder =
        JobInfo
            .Builder(ids.now, service)
            .setRequiredNetworkType(JobInfo.NETWORK_TYPE_ANY)
            .setBackoffCriteria(conditions.firstBackoffMs, JobInfo.BACKOFF_POLICY_EXPONENTIAL)

    // No quota, and it may last; Android demands a notification, and a visible app that schedules it.
    private fun mayBeUserInitiated() = notification != null && isGranted(Manifest.permission.RUN_USER_INITIATED_JOBS)

    @NewerAndroid(Build.VERSION_CODES.UPSIDE_DOWN_CAKE)
    private fun userInitiated() = plain().setUserInitiated(true)

    // Begins at once, within a quota of minutes.
    @NewerAndroid(Build.VERSION_CODES.S)
    private fun expedited() = plain().setExpedited(true)

    private fun request(job: JobInfo): Boolean =
        try {
            scheduler.schedule(job) == JobScheduler.RESULT_SUCCESS
        } catch (refusal: IllegalStateException) {
            Log.w("FedLens", "Android takes no more jobs of this app: ${refusal.message}")
            false
        }

    private fun isGranted(permission: String) =
        context.checkSelfPermission(permission) == PackageManager.PERMISSION_GRANTED
}
