package org.fedlens.app

import android.content.Context
import android.text.format.Formatter
import org.fedlens.sdk.Evaluation
import org.fedlens.sdk.blob.TensorSpec
import org.fedlens.sdk.store.JournalEntry
import java.text.DateFormat
import java.text.NumberFormat
import java.util.Date

/** Entries of the journal in words: in short, and in every detail. */
internal class SentTexts(
    private val context: Context,
    private val settings: Settings,
) {
    fun time(entry: JournalEntry): String =
        DateFormat.getDateTimeInstance(DateFormat.MEDIUM, DateFormat.SHORT, settings.locale).format(Date(entry.timeMs))

    /** The kind of message, its size, and whether it has arrived. */
    fun what(entry: JournalEntry): String {
        val size = Formatter.formatShortFileSize(context, entry.bytes)
        val kind =
            when (entry) {
                is JournalEntry.Upload -> context.getString(R.string.sent_result)
                is JournalEntry.Failure -> context.getString(R.string.sent_failure)
                is JournalEntry.Enrolment -> context.getString(R.string.sent_enrolment)
            }
        val outcome =
            when (entry.outcome) {
                JournalEntry.Outcome.WAITING -> R.string.outcome_waiting
                JournalEntry.Outcome.DELIVERED -> R.string.outcome_delivered
                JournalEntry.Outcome.REFUSED -> R.string.outcome_refused
                JournalEntry.Outcome.DROPPED -> R.string.outcome_dropped
                JournalEntry.Outcome.UNKNOWN -> R.string.outcome_unknown
            }
        return context.getString(R.string.sent_what, kind, size, context.getString(outcome))
    }

    /** What an owner may want to know at a glance. */
    fun summary(entry: JournalEntry): List<String> =
        when (entry) {
            is JournalEntry.Upload ->
                buildList {
                    add(photos(entry))
                    val sums = entry.evaluations[Labels.TRAINED] ?: entry.evaluations[Labels.START]
                    if (sums != null) add(context.getString(R.string.accuracy_sent, sums.correct, sums.count))
                }
            is JournalEntry.Failure -> emptyList()
            is JournalEntry.Enrolment -> answers(entry)
        }

    /** The task and the round; null where there is none. */
    fun round(entry: JournalEntry): String? =
        when (entry) {
            is JournalEntry.Upload -> context.getString(R.string.details_round, entry.task, entry.round)
            is JournalEntry.Failure -> context.getString(R.string.details_round, entry.task, entry.round)
            is JournalEntry.Enrolment -> null
        }

    /** Every tensor with its shape and type. */
    fun tensors(entry: JournalEntry): List<String> =
        when {
            entry !is JournalEntry.Upload -> emptyList()
            entry.sent.isEmpty() -> listOf(context.getString(R.string.no_tensors))
            else ->
                entry.sent.flatMap { blob ->
                    val text = if (blob.isDifference) R.string.tensor_difference else R.string.tensor
                    blob.tensors.map { context.getString(text, it.name, shape(it), it.type) }
                }
        }

    private fun shape(tensor: TensorSpec): String = tensor.shape.joinToString(" × ").ifEmpty { "1" }

    /** Everything that was told besides. */
    fun answers(entry: JournalEntry): List<String> =
        when (entry) {
            is JournalEntry.Upload -> answers(entry)
            is JournalEntry.Failure -> listOf(context.getString(R.string.answer_failure, entry.detail))
            is JournalEntry.Enrolment -> listOf(context.getString(R.string.answer_enrolment))
        }

    private fun answers(upload: JournalEntry.Upload): List<String> =
        buildList {
            add(photos(upload))
            if (upload.classCounts.isNotEmpty()) {
                add(context.getString(R.string.answer_class_counts, byClass(upload.classCounts) { it.toString() }))
            }
            if (upload.labelDistribution.isNotEmpty()) {
                add(context.getString(R.string.answer_shares, byClass(upload.labelDistribution, number::format)))
            }
            for ((label, sums) in upload.evaluations) {
                add(evaluation(label, sums))
                if (sums.confusion != null) add(context.getString(R.string.answer_confusion))
            }
        }

    private fun photos(upload: JournalEntry.Upload): String {
        val count = upload.numExamples.toInt()
        return context.resources.getQuantityString(R.plurals.answer_photos, count, count)
    }

    private fun evaluation(
        label: String,
        sums: Evaluation,
    ): String {
        val loss = number.format(sums.loss)
        return when (label) {
            Labels.START -> context.getString(R.string.answer_before, sums.correct, sums.count, loss)
            Labels.TRAINED -> context.getString(R.string.answer_after, sums.correct, sums.count, loss)
            else -> context.getString(R.string.answer_other, label, sums.correct, sums.count, loss)
        }
    }

    private val number
        get() =
            NumberFormat.getNumberInstance(settings.locale).apply {
                maximumFractionDigits = 2
            }

    private fun <T> byClass(
        numbers: List<T>,
        shown: (T) -> String,
    ): String {
        val names = settings.classNames
        return numbers.withIndex().joinToString(", ") { (place, number) ->
            val name = if (names.size == numbers.size) settings.shown(names[place]) else "${place + 1}"
            "$name ${shown(number)}"
        }
    }
}
