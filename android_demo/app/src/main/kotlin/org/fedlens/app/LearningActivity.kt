package org.fedlens.app

import android.content.Intent
import android.os.Bundle
import android.view.View
import android.widget.ImageView
import android.widget.TextView
import kotlinx.coroutines.flow.combine
import kotlinx.coroutines.launch
import org.fedlens.sdk.Evaluation
import org.fedlens.sdk.store.JournalEntry
import java.text.SimpleDateFormat
import java.util.Date

/** The state of learning, and the model's accuracy before and after training: in the last round, and over time. */
class LearningActivity : ScreenActivity() {
    private lateinit var status: StatusCard

    override val tab get() = Tab.LEARNING

    override fun make(saved: Bundle?) {
        fill(R.layout.learning, R.string.learning)
        status = StatusCard(this, app)
        findViewById<View>(R.id.open_model).setOnClickListener {
            startActivity(Intent(this, YourModelActivity::class.java))
        }
        findViewById<ImageView>(R.id.nothing_icon).setImageResource(R.drawable.ic_learning)
        findViewById<TextView>(R.id.nothing_title).setText(R.string.learning_empty_title)
        findViewById<TextView>(R.id.nothing_text).setText(R.string.learning_empty_text)
        findViewById<View>(R.id.nothing_yet).isVisible = false
        show(emptyList())
    }

    override fun follow() {
        seen?.launch { app.photos.read() }
        seen?.launch { app.learning.readJournal() }
        val learning = combine(app.fedlens.status, app.network.isThere, ::Pair)
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
        showCount(last.start, R.id.before)
        showCount(last.trained, R.id.after)
        showVerdict(last.start, last.trained)
        val pattern = android.text.format.DateFormat.getBestDateTimePattern(app.settings.locale, "Md")
        val date = SimpleDateFormat(pattern, app.settings.locale)
        findViewById<AccuracyChart>(R.id.chart).points =
            measured.map {
                AccuracyChart.Point(date.format(Date(it.timeMs)), it.start.accuracy, it.trained.accuracy)
            }
    }

    private fun showCount(
        sums: Evaluation?,
        number: Int,
    ) {
        findViewById<TextView>(number).text =
            if (sums.isMeasured && sums != null) {
                getString(R.string.of_total, sums.correct, sums.count)
            } else {
                getString(R.string.dash)
            }
    }

    /** Say in words whether the model has become better; nothing if the same photos were not counted twice. */
    private fun showVerdict(
        before: Evaluation?,
        after: Evaluation?,
    ) {
        val view = findViewById<TextView>(R.id.verdict)
        val isCounted = before.isMeasured && before?.count == after?.count
        view.isVisible = isCounted
        if (!isCounted || before == null || after == null) return
        val verdict = Verdict.of(before.correct.toInt(), after.correct.toInt())
        val isWorse = verdict == Verdict.FEWER
        view.text = verdict.said(resources, before.correct.toInt(), after.correct.toInt(), after.count.toInt())
        view.setBackgroundResource(if (isWorse) R.drawable.notice else 0)
        view.setTextColor(getColor(if (isWorse) R.color.on_warning else R.color.text))
        val rim = if (isWorse) resources.getDimensionPixelSize(R.dimen.gap_small) else 0
        view.setPadding(rim, rim, rim, rim)
    }

    private val JournalEntry.Upload.start get() = evaluations[Labels.START]

    private val JournalEntry.Upload.trained get() = evaluations[Labels.TRAINED]

    private val Evaluation?.isMeasured get() = this != null && count > 0

    private val Evaluation?.accuracy
        get() = this?.takeIf { it.count > 0 }?.let { it.correct.toDouble() / it.count }
}
