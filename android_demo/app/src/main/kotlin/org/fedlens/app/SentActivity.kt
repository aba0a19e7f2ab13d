package org.fedlens.app

import android.os.Bundle
import android.text.format.Formatter
import android.view.View
import android.view.ViewGroup
import android.widget.ListView
import android.widget.TextView
import kotlinx.coroutines.flow.combine
import kotlinx.coroutines.launch
import org.fedlens.sdk.store.Journal
import org.fedlens.sdk.store.JournalEntry

/** The log of what left this phone: every message with time, size and what it says; and what never leaves. */
class SentActivity : ScreenActivity() {
    private lateinit var rows: SentRows
    private lateinit var summary: View

    override val tab get() = Tab.SENT

    override fun make(saved: Bundle?) {
        fill(R.layout.sent, R.string.sent)
        rows = SentRows(this, SentTexts(this, app.settings)) { startActivity(DetailsActivity.intent(this, it)) }
        findViewById<ListView>(R.id.uploads).apply {
            summary = layoutInflater.inflate(R.layout.sent_summary, this, false)
            val never = layoutInflater.inflate(R.layout.sent_never, this, false)
            val lines = resources.getStringArray(R.array.what_never_leaves).toList()
            never.findViewById<ViewGroup>(R.id.never).addLines(lines)
            addHeaderView(summary, null, false)
            addFooterView(never, null, false)
            adapter = rows
        }
    }

    override fun follow() {
        seen?.launch { app.learning.readJournal() }
        whileSeen(combine(app.learning.journal, app.learning.totals, ::Pair)) { (entries, totals) ->
            if (entries != null) show(entries, totals)
        }
    }

    private fun show(
        entries: List<JournalEntry>,
        totals: Journal.Totals,
    ) {
        rows.show(entries)
        summary.findViewById<TextView>(R.id.total).text =
            if (totals.results == 0) {
                getString(R.string.nothing_sent_title)
            } else {
                val size = Formatter.formatShortFileSize(this, totals.resultBytes)
                resources.getQuantityString(R.plurals.sent_total, totals.results, totals.results, size)
            }
        summary.findViewById<TextView>(R.id.total_text).text =
            when {
                totals.results == 0 -> getString(R.string.nothing_sent_text)
                entries.size < totals.entries -> getString(R.string.sent_text_newest, entries.size, totals.entries)
                else -> getString(R.string.sent_text)
            }
    }
}
