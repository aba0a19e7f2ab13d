package org.fedlens.example

import android.app.job.JobInfo
import android.app.job.JobParameters
import android.app.job.JobScheduler
import android.app.job.JobService
import android.content.ComponentName
import android.content.Context
import org.fedlens.sdk.Callbacks
import org.fedlens.sdk.ClientState
import org.fedlens.sdk.Event
import org.fedlens.sdk.Running
import java.util.concurrent.TimeUnit

/** Learns while the phone charges, nobody uses it, and the network costs nothing. */
class LearningJob : JobService() {
    @Volatile private var running: Running? = null

    override fun onStartJob(parameters: JobParameters): Boolean {
        val client = (application as ExampleApp).client
        running =
            client.start(
                object : Callbacks {
                    override fun onEvent(event: Event) = Unit

                    // There is nothing to do now: the next job asks again, and until then the phone may sleep.
                    override fun onState(state: ClientState) {
                        if (state is ClientState.Waiting) running?.cancel()
                    }

                    override fun onEnd(error: Exception?) = jobFinished(parameters, false)
                },
                rounds = 1,
            )
        // It may have gone on with the last job's pause before there was anything to cancel.
        if (client.state.value is ClientState.Waiting) running?.cancel()
        return true
    }

    /** The conditions have ended. What was computed is kept and sent next time. */
    override fun onStopJob(parameters: JobParameters): Boolean {
        running?.cancel()
        return true
    }

    companion object {
        /** Has the job run twice a day, if the phone is at rest then. */
        fun schedule(context: Context) {
            val job =
                JobInfo
                    .Builder(1, ComponentName(context, LearningJob::class.java))
                    .setPeriodic(TimeUnit.HOURS.toMillis(12))
                    .setRequiresCharging(true)
                    .setRequiresDeviceIdle(true)
                    .setRequiredNetworkType(JobInfo.NETWORK_TYPE_UNMETERED)
                    .setPersisted(true)
                    .build()
            context.getSystemService(JobScheduler::class.java)?.schedule(job)
        }
    }
}
