package org.fedlens.app

import android.app.Activity
import android.view.View
import android.view.ViewGroup
import android.widget.BaseAdapter
import android.widget.TextView
import org.fedlens.sdk.store.JournalEntry

/** The journal as rows of a list, newest first; [open] shows the details of one entry. */
internal class SentRows(
    private val activity: Activity,
    private val texts: SentTexts,
    private val open: (JournalEntry) -> Unit,
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

    // Each card handles its own clicks, not the row.
    override fun isEnabled(position: Int): Boolean = false

    override fun getView(
        position: Int,
        convertView: View?,
        parent: ViewGroup,
    ): View {
        val view = convertView ?: activity.layoutInflater.inflate(R.layout.sent_upload, parent, false)
        val entry = entries[position]
        view.findViewById<TextView>(R.id.upload_time).text = texts.time(entry)
        view.findViewById<TextView>(R.id.upload_what).text = texts.what(entry)
        view.findViewById<ViewGroup>(R.id.upload_answers).addLines(texts.summary(entry))
        view.findViewById<View>(R.id.upload_details).setOnClickListener { open(entry) }
        return view
    }
}
