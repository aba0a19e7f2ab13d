package org.fedlens.app

import android.os.Bundle
import android.text.format.Formatter
import android.view.View
import android.view.ViewGroup
import android.widget.ListView
import android.widget.TextView
import kotlinx.coroutines.launch
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
        whileSeen(app.learning.journal) { entries ->
            if (entries != null) show(entries)
        }
    }

    private fun show(entries: List<JournalEntry>) {
        rows.show(entries)
        val results = entries.filterIsInstance<JournalEntry.Upload>().filter { it.outcome in COUNTED }
        summary.findViewById<TextView>(R.id.total).text =
            if (results.isEmpty()) {
                getString(R.string.nothing_sent_title)
            } else {
                val size = Formatter.formatShortFileSize(this, results.sumOf { it.bytes })
                resources.getQuantityString(R.plurals.sent_total, results.size, results.size, size)
            }
        summary.findViewById<TextView>(R.id.total_text).setText(
            if (results.isEmpty()) R.string.nothing_sent_text else R.string.sent_text,
        )
    }

    private companion object {
        val COUNTED = setOf(JournalEntry.Outcome.DELIVERED, JournalEntry.Outcome.REFUSED)
    }
}
