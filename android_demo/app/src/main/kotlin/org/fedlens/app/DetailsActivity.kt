package org.fedlens.app

import android.content.Context
import android.content.Intent
import android.os.Bundle
import android.view.View
import android.view.ViewGroup
import android.widget.TextView
import kotlinx.coroutines.launch
import org.fedlens.sdk.store.JournalEntry

/** One message in every detail, in the words of those who build such systems. */
class DetailsActivity : ScreenActivity() {
    override fun make(saved: Bundle?) {
        fill(R.layout.details, R.string.details)
    }

    override fun follow() {
        seen?.launch { app.learning.readJournal() }
        whileSeen(app.learning.journal) { entries ->
            if (entries == null) return@whileSeen
            val entry = entries.firstOrNull { it.id == intent.getLongExtra(ID, 0) }
            if (entry == null) finish() else show(entry)
        }
    }

    private fun show(entry: JournalEntry) {
        val texts = SentTexts(this, app.settings)
        findViewById<TextView>(R.id.upload_time).text = texts.time(entry)
        findViewById<TextView>(R.id.upload_what).text = texts.what(entry)
        findViewById<TextView>(R.id.upload_round).apply {
            text = texts.round(entry)
            isVisible = text.isNotEmpty()
        }
        val tensors = texts.tensors(entry)
        findViewById<View>(R.id.tensors_title).isVisible = tensors.isNotEmpty()
        findViewById<ViewGroup>(R.id.upload_tensors).addLines(tensors)
        findViewById<ViewGroup>(R.id.upload_answers).addLines(texts.answers(entry))
    }

    internal companion object {
        private const val ID = "id"

        /** Open the details of one message. */
        fun intent(
            context: Context,
            entry: JournalEntry,
        ): Intent = Intent(context, DetailsActivity::class.java).putExtra(ID, entry.id)
    }
}
