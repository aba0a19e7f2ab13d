package org.fedlens.app

import android.os.Bundle
import android.view.View
import android.widget.Button
import android.widget.TextView
import kotlinx.coroutines.launch
import org.fedlens.sdk.model.Model
import org.fedlens.sdk.model.Models
import java.text.DateFormat
import java.util.Date

/** The model on this phone: what it recognises, how well on the owner's photos, since when, and what has changed. */
class YourModelActivity : ScreenActivity() {
    override fun make(saved: Bundle?) {
        fill(R.layout.your_model, R.string.your_model)
    }

    override fun follow() {
        seen?.launch {
            app.learning.readModels()
            app.learning.testModels()
        }
        whileSeen(app.learning.models, ::show)
    }

    private fun show(models: Models?) {
        val model = models?.inUse
        findViewById<View>(R.id.nothing_yet).isVisible = model == null
        findViewById<View>(R.id.model).isVisible = model != null
        findViewById<TextView>(R.id.nothing_title).setText(R.string.no_model_title)
        findViewById<TextView>(R.id.nothing_text).setText(R.string.no_model_here)
        if (model == null) return
        findViewById<TextView>(R.id.recognises).text = listed(model.classNames)
        findViewById<TextView>(R.id.how_well).text = said(model)
        val date = DateFormat.getDateInstance(DateFormat.LONG, app.settings.locale)
        findViewById<TextView>(R.id.since).text =
            model.inUseSinceMs?.let { date.format(Date(it)) } ?: getString(R.string.dash)
        findViewById<TextView>(R.id.changed).text = changed(model, models.previous)
        offer(R.id.newer, R.id.newer_text, R.id.use_newer, models.newer)
        offer(R.id.previous, R.id.previous_text, R.id.use_previous, models.previous)
    }

    private fun said(model: Model): String =
        when (val result = model.result?.takeIf { it.count > 0 }) {
            null -> getString(R.string.not_tested)
            else -> getString(R.string.right_of, result.correct, result.count)
        }

    /** What the model does otherwise than the one before it. */
    private fun changed(
        model: Model,
        previous: Model?,
    ): String {
        val lines = ArrayList<String>()
        if (previous != null) {
            val (before, now) = previous.result to model.result
            if (before != null && now != null && before.count == now.count && now.count > 0) {
                lines += Verdict.of(before.correct, now.correct).said(resources, before.correct, now.correct, now.count)
            }
            model.gainsOver(previous)?.let { lines += resources.getQuantityString(R.plurals.newly_right, it, it) }
            previous.gainsOver(model)?.let { lines += resources.getQuantityString(R.plurals.newly_wrong, it, it) }
            val added = model.classNames - previous.classNames.toSet()
            if (previous.classNames.isNotEmpty() && added.isNotEmpty()) {
                lines += getString(R.string.newly_recognised, listed(added))
            }
        }
        return lines.joinToString("\n").ifEmpty { getString(R.string.nothing_changed) }
    }

    private fun listed(names: List<String>) = names.joinToString(", ", transform = app.settings::shown)

    private fun offer(
        card: Int,
        text: Int,
        button: Int,
        model: Model?,
    ) {
        findViewById<View>(card).isVisible = model != null
        if (model == null) return
        findViewById<TextView>(text).text = said(model)
        findViewById<Button>(button).setOnClickListener { app.scope.launch { app.learning.adopt(model) } }
    }
}
