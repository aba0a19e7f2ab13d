package org.fedlens.app

import android.app.Notification
import android.app.job.JobParameters
import android.app.job.JobService
import android.os.Build
import kotlinx.coroutines.Job
import kotlinx.coroutines.delay
import kotlinx.coroutines.launch

/** Background learning, and rounds that *Learn now* began; a notification shows the job and can cancel it. */
class LearnJob : JobService() {
    private val works = HashMap<Int, Job>()

    override fun onStartJob(params: JobParameters): Boolean {
        val app = application as FedLensApp
        val learning = app.learning
        if (!learning.isAllowed) return false
        val isNow = params.jobId == Schedule.NOW
        val round = learning.start(isByItself = !isNow) ?: return false
        if (isNow) app.schedule.isKeptAlive = true
        show(params, LearnNotification.of(app, learning.state.value))
        works[params.jobId] =
            app.scope.launch {
                val notifying =
                    launch {
                        learning.state.collect {
                            show(params, LearnNotification.of(app, it))
                            delay(BETWEEN_NOTIFICATIONS_MS)
                        }
                    }
                round.join()
                notifying.cancel()
                forget(params)
                jobFinished(params, false)
            }
        return true
    }

    override fun onStopJob(params: JobParameters): Boolean {
        val app = application as FedLensApp
        val isUnderWay = app.learning.isRunning.value
        works[params.jobId]?.cancel()
        forget(params)
        // The other job may still be running the same round.
        if (works.isEmpty()) app.learning.interrupt()
        // Android repeats the regular job by itself.
        return params.jobId == Schedule.NOW && isUnderWay && app.learning.isAllowed
    }

    private fun forget(params: JobParameters) {
        val app = application as FedLensApp
        works.remove(params.jobId)
        if (works.isEmpty()) LearnNotification.remove(app)
        if (params.jobId == Schedule.NOW) app.schedule.isKeptAlive = false
    }

    private fun show(
        params: JobParameters,
        notification: Notification,
    ) {
        if (Build.VERSION.SDK_INT >= Build.VERSION_CODES.UPSIDE_DOWN_CAKE) {
            attach(params, notification)
        } else {
            LearnNotification.show(this, notification)
        }
    }

    @NewerAndroid(Build.VERSION_CODES.UPSIDE_DOWN_CAKE)
    private fun attach(
        params: JobParameters,
        notification: Notification,
    ) {
        setNotification(params, LearnNotification.ID, notification, JOB_END_NOTIFICATION_POLICY_REMOVE)
    }

    private companion object {
        const val BETWEEN_NOTIFICATIONS_MS = 500L
    }
}
