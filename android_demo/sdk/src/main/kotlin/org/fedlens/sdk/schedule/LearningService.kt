package org.fedlens.sdk.schedule

import android.app.job.JobParameters
import android.app.job.JobService
import android.os.Build
import android.util.Log
import kotlinx.coroutines.CoroutineScope
import kotlinx.coroutines.CoroutineStart
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.Job
import kotlinx.coroutines.SupervisorJob
import kotlinx.coroutines.cancel
import kotlinx.coroutines.launch
import org.fedlens.sdk.FedLens
import org.fedlens.sdk.NewerAndroid
import java.util.concurrent.ConcurrentHashMap

/**
 * The job that learns. Android starts it in the app's process, after `Application.onCreate`, which must have called
 * [FedLens.create]. It does nothing on the main thread but begin and end.
 */
public class LearningService : JobService() {
    private val scope = CoroutineScope(SupervisorJob() + Dispatchers.Default)
    internal val works = ConcurrentHashMap<Int, Job>()

    override fun onStartJob(params: JobParameters): Boolean {
        val fedlens = FedLens.current
        if (fedlens == null) {
            Log.w("FedLens", "a job cannot learn: Application.onCreate has not called FedLens.create")
            return false
        }
        val isAskedFor = params.jobId == fedlens.jobs.ids.now
        if (isAskedFor && Build.VERSION.SDK_INT >= Build.VERSION_CODES.UPSIDE_DOWN_CAKE) show(params, fedlens)
        fedlens.jobs.background.value = Background.RUNNING
        val work =
            scope.launch(start = CoroutineStart.LAZY) {
                val comesAgain = Session(this@LearningService, fedlens.client, fedlens.jobs).learn(isAskedFor)
                jobFinished(params, comesAgain)
                works.remove(params.jobId)
            }
        works[params.jobId] = work
        work.start()
        return true
    }

    /** What was computed is kept and sent next time. */
    override fun onStopJob(params: JobParameters): Boolean {
        val wasRunning = works.remove(params.jobId)?.also { it.cancel() } != null
        val reason = if (Build.VERSION.SDK_INT >= Build.VERSION_CODES.S) reason(params) else Background.INTERRUPTED
        val fedlens = FedLens.current ?: return false
        // A job that was cancelled from here has its reason already.
        if (fedlens.jobs.background.value == Background.RUNNING) {
            val isTooHot = Session(this, fedlens.client, fedlens.jobs).isTooHot
            fedlens.jobs.background.value = if (isTooHot) Background.TOO_HOT else reason
        }
        return wasRunning && reason != Background.ENDED_BY_USER
    }

    override fun onDestroy() {
        scope.cancel()
        super.onDestroy()
    }

    @NewerAndroid(Build.VERSION_CODES.S)
    private fun reason(params: JobParameters): Background =
        when (params.stopReason) {
            JobParameters.STOP_REASON_QUOTA -> Background.OUT_OF_QUOTA
            JobParameters.STOP_REASON_USER -> Background.ENDED_BY_USER
            else -> Background.INTERRUPTED
        }

    @NewerAndroid(Build.VERSION_CODES.UPSIDE_DOWN_CAKE)
    private fun show(
        params: JobParameters,
        fedlens: FedLens,
    ) {
        val (id, shown) = fedlens.jobs.notification?.invoke() ?: return
        setNotification(params, id, shown, JOB_END_NOTIFICATION_POLICY_REMOVE)
    }
}
