package org.fedlens.sdk.schedule

import android.Manifest
import android.app.job.JobInfo
import android.app.job.JobScheduler
import android.content.ComponentName
import android.content.Context
import android.content.pm.PackageManager
import android.os.Build
import android.util.Log
import kotlinx.coroutines.Job
import kotlinx.coroutines.flow.MutableStateFlow
import kotlinx.coroutines.flow.StateFlow
import org.fedlens.sdk.ClientState
import org.fedlens.sdk.NewerAndroid
import java.util.concurrent.ConcurrentHashMap

/**
 * The jobs of [LearningService]: what Android is asked for, on each of its versions.
 *
 * @property isShown True if there is a notification while a job runs.
 */
internal class LearningJobs(
    private val context: Context,
    conditions: Conditions,
    val ids: JobIds,
    private val isShown: Boolean,
) {
    private val scheduler = checkNotNull(context.getSystemService(JobScheduler::class.java))
    private val service = ComponentName(context, LearningService::class.java)

    @Volatile private var isRequested = scheduler.getPendingJob(ids.now) != null

    /** The work of the running jobs, by id. */
    val works: MutableMap<Int, Job> = ConcurrentHashMap()

    /** The conditions of the periodic job, which is scheduled anew when they change. */
    @Volatile
    var conditions: Conditions = conditions
        set(value) {
            field = value
            if (isScheduled) schedule()
        }

    /** True if the periodic job is scheduled. */
    val isScheduled: Boolean get() = scheduler.getPendingJob(ids.periodic) != null

    private val changing = MutableStateFlow(JobStatus(background(met = null), left = null))

    /** What has become of the jobs. */
    val status: StateFlow<JobStatus> = changing

    private val isTooHot get() = Heat.now(context) > conditions.hottest

    /** Schedule the periodic job, unless it is scheduled under the same conditions. */
    fun schedule() {
        val job = periodic()
        if (scheduler.getPendingJob(ids.periodic) == job) return
        tell(met = if (request(job)) null else Background.OUT_OF_QUOTA)
    }

    /** Cancel the periodic job. If it is running, it ends. */
    fun unschedule() {
        scheduler.cancel(ids.periodic)
        works[ids.periodic]?.cancel()
        tell()
    }

    /** Cancel both jobs, and no other job of the app. A running one ends. */
    fun cancel() {
        unschedule()
        stop()
    }

    /**
     * Schedule a job for now, of the most lasting type that Android grants, unless it is running.
     *
     * @return False if it grants none.
     */
    fun scheduleNow(): Boolean {
        if (ids.now in works) return true
        isRequested = typesNow().any { request(it.build()) }
        tell(met = status.value.background.takeUnless { isRequested }, left = null)
        return isRequested
    }

    /** End what is running, and what is to run now; the periodic job comes again. */
    fun stop() {
        isRequested = false
        // Android would say of a running one that it was stopped; it ends by itself.
        if (ids.now !in works) scheduler.cancel(ids.now)
        works.values.forEach { it.cancel() }
        tell(left = null)
    }

    /** A job has begun. */
    fun begin(
        id: Int,
        work: Job,
    ) {
        if (id == ids.now) isRequested = false
        works[id] = work
        tell(left = null)
    }

    /**
     * The work of a job has ended as [ending] says; null: it was cancelled.
     *
     * @return False if Android had stopped the job.
     */
    fun end(
        id: Int,
        work: Job,
        ending: Ending?,
    ): Boolean {
        if (!works.remove(id, work)) return false
        if (ending?.met == Background.GIVEN_UP) cancel()
        tell(ending?.met, ending?.left ?: status.value.left)
        return true
    }

    /** Android has stopped a job, and says [why]; false if it had ended. */
    fun stopped(
        id: Int,
        why: Background,
    ): Boolean {
        val work = works.remove(id) ?: return false
        work.cancel()
        val isCancelled = scheduler.getPendingJob(id) == null
        tell(met = (if (isTooHot) Background.TOO_HOT else why).takeUnless { isCancelled })
        return true
    }

    @Synchronized
    private fun tell(
        met: Background? = null,
        left: ClientState? = status.value.left,
    ) {
        changing.value = JobStatus(background(met), left)
    }

    /** What becomes of the background after something was [met], such as heat. */
    private fun background(met: Background?) =
        when {
            works.isNotEmpty() -> Background.RUNNING
            met != null -> met
            isRequested -> Background.REQUESTED
            isScheduled -> Background.SCHEDULED
            else -> Background.OFF
        }

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
    private fun mayBeUserInitiated() = isShown && isGranted(Manifest.permission.RUN_USER_INITIATED_JOBS)

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

/**
 * What has become of the jobs.
 *
 * @property background Of learning in the background.
 * @property left The state of the client in which the last job ended; null if that was stopped, or one is running.
 */
internal data class JobStatus(
    val background: Background,
    val left: ClientState?,
)
