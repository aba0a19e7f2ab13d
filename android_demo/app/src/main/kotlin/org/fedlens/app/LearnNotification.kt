package org.fedlens.app

import android.app.Notification
import android.app.NotificationChannel
import android.app.NotificationManager
import android.app.PendingIntent
import android.content.Context
import android.content.Intent
import android.graphics.drawable.Icon
import org.fedlens.sdk.ClientState

/** The notification that shows learning while the app is not visible. */
internal object LearnNotification {
    private const val CHANNEL = "learning"

    /** Create the channel, through which the owner can silence notifications. */
    fun makeChannel(context: Context) {
        val name = context.getString(R.string.background_learning)
        val channel = NotificationChannel(CHANNEL, name, NotificationManager.IMPORTANCE_LOW)
        channel.description = context.getString(R.string.channel_explained)
        context.getSystemService(NotificationManager::class.java).createNotificationChannel(channel)
    }

    /** A notification with the client's state, its progress, and a button to cancel. */
    fun of(
        app: FedLensApp,
        state: ClientState,
    ): Notification {
        val status = Status.ofRunning(app.resources, state)
        val builder =
            Notification
                .Builder(app, CHANNEL)
                .setSmallIcon(R.drawable.ic_model)
                .setContentTitle(status.title)
                .setContentText(status.text)
                .setColor(app.getColor(R.color.primary))
                .setOngoing(true)
                .setOnlyAlertOnce(true)
                .setContentIntent(open(app))
                .addAction(
                    Notification.Action
                        .Builder(
                            Icon.createWithResource(app, R.drawable.ic_close),
                            app.getString(R.string.cancel),
                            app.fedlens.stopIntent,
                        ).build(),
                )
        when (val progress = status.progress) {
            null -> Unit
            is Status.Progress.Unknown -> builder.setProgress(0, 0, true)
            is Status.Progress.Known -> builder.setProgress(Status.FULL, progress.of1000, false)
        }
        return builder.build()
    }

    private fun open(context: Context): PendingIntent {
        val intent =
            Intent(context, LearningActivity::class.java)
                .addFlags(Intent.FLAG_ACTIVITY_CLEAR_TOP or Intent.FLAG_ACTIVITY_SINGLE_TOP)
        return PendingIntent.getActivity(context, 0, intent, PendingIntent.FLAG_IMMUTABLE)
    }
}
