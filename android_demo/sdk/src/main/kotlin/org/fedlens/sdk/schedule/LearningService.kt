package org.fedlens.sdk.schedule

import android.app.Notification
import android.app.NotificationManager
import android.app.job.JobParameters
import android.app.job.JobService
import android.os.Build
import android.util.Log
import kotlinx.coroutines.CoroutineScope
import kotlinx.coroutines.CoroutineStart
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.SupervisorJob
import kotlinx.coroutines.cancel
import kotlinx.coroutines.coroutineScope
import kotlinx.coroutines.delay
import kotlinx.coroutines.job
import kotlinx.coroutines.launch
import kotlinx.coroutines.yield
import org.fedlens.sdk.FedLens
import org.fedlens.sdk.NewerAndroid

private const val BETWEEN_NOTIFICATIONS_MS = 500L

/**
 * The job that learns. Android starts it in the app's process, after `Application.onCreate`, which must have called
 * [FedLens.create]. It does nothing on the main thread but begin and end.
 */
public class LearningService : JobService() {
    private val scope = CoroutineScope(SupervisorJob() + Dispatchers.Default)
    private val notifications get() = checkNotNull(getSystemService(NotificationManager::class.java))

    override fun onStartJob(params: JobParameters): Boolean {
        val fedlens = FedLens.current
        if (fedlens == null) {
            Log.w("FedLens", "a job cannot learn: Application.onCreate has not called FedLens.create")
            return false
        }
        // Undispatched, so that whoever cancels it reaches the end below.
        scope.launch(start = CoroutineStart.UNDISPATCHED) {
            val work = coroutineContext.job
            fedlens.jobs.begin(params.jobId, work)
            // At once, as Android demands of a job that the user has asked for.
            show(params, fedlens)
            var ending: Ending? = null
            try {
                yield()
                ending = learn(params, fedlens)
            } finally {
                val isOwn = fedlens.jobs.end(params.jobId, work, ending)
                fedlens.hideNotification()
                if (isOwn) jobFinished(params, ending?.comesAgain ?: false)
            }
        }
        return true
    }

    /** What was computed is kept and sent next time. */
    override fun onStopJob(params: JobParameters): Boolean {
        val fedlens = FedLens.current ?: return false
        val reason = if (Build.VERSION.SDK_INT >= Build.VERSION_CODES.S) reason(params) else Background.INTERRUPTED
        return fedlens.jobs.stopped(params.jobId, reason) && reason != Background.ENDED_BY_USER
    }

    override fun onDestroy() {
        scope.cancel()
        super.onDestroy()
    }

    private suspend fun learn(
        params: JobParameters,
        fedlens: FedLens,
    ): Ending =
        coroutineScope {
            val showing =
                launch {
                    fedlens.status.collect {
                        show(params, fedlens)
                        delay(BETWEEN_NOTIFICATIONS_MS)
                    }
                }
            val session = Session(this@LearningService, fedlens.client, fedlens.jobs.conditions.hottest)
            session.learn(isAskedFor = params.jobId == fedlens.jobs.ids.now).also { showing.cancel() }
        }

    @NewerAndroid(Build.VERSION_CODES.S)
    private fun reason(params: JobParameters): Background =
        when (params.stopReason) {
            JobParameters.STOP_REASON_QUOTA -> Background.OUT_OF_QUOTA
            JobParameters.STOP_REASON_USER -> Background.ENDED_BY_USER
            else -> Background.INTERRUPTED
        }

    private fun show(
        params: JobParameters,
        fedlens: FedLens,
    ) {
        val shown = fedlens.notification() ?: return
        if (Build.VERSION.SDK_INT >= Build.VERSION_CODES.UPSIDE_DOWN_CAKE) {
            attach(params, fedlens.notificationId, shown)
        } else {
            notifications.notify(fedlens.notificationId, shown)
        }
    }

    @NewerAndroid(Build.VERSION_CODES.UPSIDE_DOWN_CAKE)
    private fun attach(
        params: JobParameters,
        id: Int,
        shown: Notification,
    ) {
        setNotification(params, id, shown, JOB_END_NOTIFICATION_POLICY_REMOVE)
    }
}
