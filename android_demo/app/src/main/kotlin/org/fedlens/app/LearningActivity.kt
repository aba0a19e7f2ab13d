package org.fedlens.app

import android.os.Bundle
import android.view.View
import android.widget.ImageView
import android.widget.TextView
import kotlinx.coroutines.flow.combine
import kotlinx.coroutines.launch
import org.fedlens.sdk.Evaluation
import org.fedlens.sdk.store.JournalEntry

/** The state of learning, and the model's accuracy before and after training: in the last round, and over time. */
class LearningActivity : ScreenActivity() {
    private lateinit var status: StatusCard

    override val tab get() = Tab.LEARNING

    override fun make(saved: Bundle?) {
        fill(R.layout.learning, R.string.learning)
        status = StatusCard(this, app)
        findViewById<ImageView>(R.id.nothing_icon).setImageResource(R.drawable.ic_learning)
        findViewById<TextView>(R.id.nothing_title).setText(R.string.learning_empty_title)
        findViewById<TextView>(R.id.nothing_text).setText(R.string.learning_empty_text)
        findViewById<View>(R.id.nothing_yet).isVisible = false
        show(emptyList())
    }

    override fun follow() {
        seen?.launch { app.photos.read() }
        seen?.launch { app.learning.readJournal() }
        val learning = combine(app.learning.state, app.learning.isRunning, app.network.isThere, ::Triple)
        whileSeen(combine(learning, app.photos.all, ::Pair)) { status.show() }
        whileSeen(app.learning.journal) { entries ->
            if (entries == null) return@whileSeen
            val measured = measured(entries)
            findViewById<View>(R.id.nothing_yet).isVisible = measured.isEmpty()
            show(measured)
        }
    }

    /** Delivered results with measurements, oldest first. */
    private fun measured(entries: List<JournalEntry>): List<JournalEntry.Upload> =
        entries
            .filterIsInstance<JournalEntry.Upload>()
            .filter { it.outcome == JournalEntry.Outcome.DELIVERED && (it.start.isMeasured || it.trained.isMeasured) }
            .asReversed()

    private fun show(measured: List<JournalEntry.Upload>) {
        val last = measured.lastOrNull()
        findViewById<View>(R.id.this_round).isVisible = last != null
        findViewById<View>(R.id.over_time).isVisible = last != null
        if (last == null) return
        findViewById<TextView>(R.id.round_title).text = getString(R.string.last_round, last.round)
        showSums(last.start, R.id.before, R.id.before_sums)
        showSums(last.trained, R.id.after, R.id.after_sums)
        findViewById<AccuracyChart>(R.id.chart).points =
            measured.map { AccuracyChart.Point(it.round.toString(), it.start.accuracy, it.trained.accuracy) }
    }

    private fun showSums(
        sums: Evaluation?,
        number: Int,
        text: Int,
    ) {
        val accuracy = sums.accuracy
        findViewById<TextView>(number).text = accuracy?.let(percent::format) ?: getString(R.string.dash)
        findViewById<TextView>(text).text =
            if (sums == null || accuracy == null) {
                getString(R.string.not_measured)
            } else {
                getString(R.string.right_of, sums.correct, sums.count)
            }
    }

    private val JournalEntry.Upload.start get() = evaluations[Labels.START]

    private val JournalEntry.Upload.trained get() = evaluations[Labels.TRAINED]

    private val Evaluation?.isMeasured get() = this != null && count > 0

    private val Evaluation?.accuracy
        get() = this?.takeIf { it.count > 0 }?.let { it.correct.toDouble() / it.count }
}
