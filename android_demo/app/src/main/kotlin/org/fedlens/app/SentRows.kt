package org.fedlens.app

import android.app.Activity
import android.text.format.Formatter
import android.view.View
import android.view.ViewGroup
import android.widget.BaseAdapter
import android.widget.TextView
import org.fedlens.sdk.Evaluation
import org.fedlens.sdk.blob.TensorSpec
import org.fedlens.sdk.store.JournalEntry
import java.text.DateFormat
import java.text.NumberFormat
import java.util.Date

/** The journal as rows of a list, newest first. */
internal class SentRows(
    private val activity: Activity,
    private val settings: Settings,
) : BaseAdapter() {
    private var entries: List<JournalEntry> = emptyList()

    fun show(entries: List<JournalEntry>) {
        this.entries = entries
        notifyDataSetChanged()
    }

    override fun getCount(): Int = entries.size

    override fun getItem(position: Int): Any = entries[position]

    override fun getItemId(position: Int): Long = entries[position].id

    override fun areAllItemsEnabled(): Boolean = false

    override fun isEnabled(position: Int): Boolean = false

    override fun getView(
        position: Int,
        convertView: View?,
        parent: ViewGroup,
    ): View {
        val view = convertView ?: activity.layoutInflater.inflate(R.layout.sent_upload, parent, false)
        val entry = entries[position]
        val locale = activity.resources.configuration.locales[0]
        val time = DateFormat.getDateTimeInstance(DateFormat.MEDIUM, DateFormat.SHORT, locale)
        view.findViewById<TextView>(R.id.upload_time).text = time.format(Date(entry.timeMs))
        view.findViewById<TextView>(R.id.upload_what).text = what(entry)
        val tensors = tensors(entry)
        view.findViewById<View>(R.id.tensors_title).isVisible = tensors.isNotEmpty()
        view.findViewById<ViewGroup>(R.id.upload_tensors).addLines(tensors)
        view.findViewById<ViewGroup>(R.id.upload_answers).addLines(answers(entry))
        return view
    }

    private fun what(entry: JournalEntry): String {
        val size = Formatter.formatShortFileSize(activity, entry.bytes)
        val kind =
            when (entry) {
                is JournalEntry.Upload -> activity.getString(R.string.sent_result, entry.task, entry.round)
                is JournalEntry.Failure -> activity.getString(R.string.sent_failure, entry.task, entry.round)
                is JournalEntry.Enrolment -> activity.getString(R.string.sent_enrolment)
            }
        val outcome =
            when (entry.outcome) {
                JournalEntry.Outcome.WAITING -> R.string.outcome_waiting
                JournalEntry.Outcome.DELIVERED -> R.string.outcome_delivered
                JournalEntry.Outcome.REFUSED -> R.string.outcome_refused
                JournalEntry.Outcome.DROPPED -> R.string.outcome_dropped
                JournalEntry.Outcome.UNKNOWN -> R.string.outcome_unknown
            }
        return activity.getString(R.string.sent_what, kind, size, activity.getString(outcome))
    }

    private fun tensors(entry: JournalEntry): List<String> =
        when {
            entry !is JournalEntry.Upload -> emptyList()
            entry.sent.isEmpty() -> listOf(activity.getString(R.string.no_tensors))
            else ->
                entry.sent.flatMap { blob ->
                    val text = if (blob.isDifference) R.string.tensor_difference else R.string.tensor
                    blob.tensors.map { activity.getString(text, it.name, shape(it), it.type) }
                }
        }

    private fun shape(tensor: TensorSpec): String = tensor.shape.joinToString(" × ").ifEmpty { "1" }

    private fun answers(entry: JournalEntry): List<String> =
        when (entry) {
            is JournalEntry.Upload -> answers(entry)
            is JournalEntry.Failure -> listOf(activity.getString(R.string.answer_failure, entry.detail))
            is JournalEntry.Enrolment -> listOf(activity.getString(R.string.answer_enrolment))
        }

    private fun answers(upload: JournalEntry.Upload): List<String> =
        buildList {
            val count = upload.numExamples.toInt()
            add(activity.resources.getQuantityString(R.plurals.answer_photos, count, count))
            if (upload.classCounts.isNotEmpty()) {
                add(activity.getString(R.string.answer_class_counts, byClass(upload.classCounts) { it.toString() }))
            }
            if (upload.labelDistribution.isNotEmpty()) {
                add(activity.getString(R.string.answer_shares, byClass(upload.labelDistribution, number::format)))
            }
            for ((label, sums) in upload.evaluations) {
                add(evaluation(label, sums))
                if (sums.confusion != null) add(activity.getString(R.string.answer_confusion))
            }
        }

    private fun evaluation(
        label: String,
        sums: Evaluation,
    ): String {
        val loss = number.format(sums.loss)
        return when (label) {
            Labels.START -> activity.getString(R.string.answer_before, sums.correct, sums.count, loss)
            Labels.TRAINED -> activity.getString(R.string.answer_after, sums.correct, sums.count, loss)
            else -> activity.getString(R.string.answer_other, label, sums.correct, sums.count, loss)
        }
    }

    private val number
        get() =
            NumberFormat.getNumberInstance(activity.resources.configuration.locales[0]).apply {
                maximumFractionDigits = 2
            }

    private fun <T> byClass(
        numbers: List<T>,
        shown: (T) -> String,
    ): String {
        val names = settings.classNames
        return numbers.withIndex().joinToString(", ") { (place, number) ->
            val name = if (names.size == numbers.size) names[place] else "${place + 1}"
            "$name ${shown(number)}"
        }
    }
}
