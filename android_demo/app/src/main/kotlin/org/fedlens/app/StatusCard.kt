package org.fedlens.app

import android.app.Activity
import android.view.View
import android.widget.Button
import android.widget.ImageView
import android.widget.ProgressBar
import android.widget.TextView
import org.fedlens.sdk.schedule.Background

/** A card that shows a [Status] and handles its buttons. */
internal class StatusCard(
    private val activity: Activity,
    private val app: FedLensApp,
) {
    private val card = activity.findViewById<View>(R.id.status)
    private val icon = activity.findViewById<ImageView>(R.id.status_icon)
    private val title = activity.findViewById<TextView>(R.id.status_title)
    private val text = activity.findViewById<TextView>(R.id.status_text)
    private val progress = activity.findViewById<ProgressBar>(R.id.status_progress)
    private val learn = activity.findViewById<Button>(R.id.learn_now)
    private val cancel = activity.findViewById<Button>(R.id.cancel)
    private val resume = activity.findViewById<Button>(R.id.resume)

    init {
        learn.setOnClickListener { app.learning.start() }
        cancel.setOnClickListener { app.fedlens.stop() }
        resume.setOnClickListener {
            app.settings.isPaused = false
            app.learning.schedule()
            show()
        }
    }

    /** Show the current status; [isFirst] if learning is what the owner should do next. */
    fun show(isFirst: Boolean = true) {
        val status = Status.of(activity.resources, facts())
        icon.setImageResource(status.icon)
        card.showFailure(status.isFailure, title, text)
        learn.emphasise(isFirst)
        // Screen readers announce every assignment, so an unchanged title is not set again.
        if (title.text.toString() != status.title) title.text = status.title
        text.text = status.text
        progress.isVisible = status.progress != null
        progress.isIndeterminate = status.progress is Status.Progress.Unknown
        (status.progress as? Status.Progress.Known)?.let { progress.progress = it.of1000 }
        learn.isVisible = status.action == Status.Action.LEARN
        cancel.isVisible = status.action == Status.Action.CANCEL
        resume.isVisible = status.action == Status.Action.RESUME
    }

    private fun facts() =
        Status.Facts(
            state = app.fedlens.status.value.state,
            isRunning = app.learning.isRunning,
            isTooHot = app.fedlens.status.value.background == Background.TOO_HOT,
            isPaused = app.settings.isPaused,
            hasNetwork = app.network.isThere.value,
            labelled = app.photos.all.value.orEmpty().count { it.label != null },
            hasClasses = app.settings.classNames.isNotEmpty(),
        )
}
