package org.fedlens.app

import android.os.Bundle
import android.view.View
import android.view.ViewGroup
import android.widget.Button
import android.widget.EditText
import android.widget.GridView
import android.widget.TextView
import kotlinx.coroutines.flow.combine
import kotlinx.coroutines.launch
import org.fedlens.app.Suggestions.Suggestion
import org.fedlens.sdk.album.AlbumPhoto

/** Labelling many photos at once: choose photos, then what all of them show. The last step can be undone. */
class LabelActivity : ScreenActivity() {
    private lateinit var cells: LabelCells
    private var chosen: Set<Long> = emptySet()
    private var waiting: List<AlbumPhoto> = emptyList()

    /** What Undo takes back; null: nothing. */
    private var last: LongArray? = null
    private var lastLabel: String? = null

    override fun make(saved: Bundle?) {
        fill(R.layout.label, R.string.label_many)
        chosen = saved?.getLongArray(CHOSEN)?.toSet().orEmpty()
        last = saved?.getLongArray(LAST)
        lastLabel = saved?.getString(LAST_LABEL)
        cells = LabelCells(this, ::toggle)
        findViewById<GridView>(R.id.photos).adapter = cells
        findViewById<EditText>(R.id.search).addTextChangedListener(TextChange { showLabels() })
        findViewById<Button>(R.id.choose_all).setOnClickListener {
            choose(if (chosen.size < waiting.size) waiting.mapTo(HashSet()) { it.id } else emptySet())
        }
        findViewById<Button>(R.id.none_of_these).setOnClickListener { label(null) }
        findViewById<Button>(R.id.undo).setOnClickListener { undo() }
    }

    override fun onSaveInstanceState(state: Bundle) {
        super.onSaveInstanceState(state)
        state.putLongArray(CHOSEN, chosen.toLongArray())
        state.putLongArray(LAST, last)
        state.putString(LAST_LABEL, lastLabel)
    }

    override fun follow() {
        cells.scope = seen
        seen?.launch { app.photos.read() }
        seen?.launch { app.learning.findModel() }
        whileSeen(combine(app.photos.all, app.suggestions.all, ::Pair)) {
            // The newest, which may be newer than those that came with a suggestion.
            waiting = app.settings.unlabelled(app.photos.all.value ?: return@whileSeen)
            choose(chosen.filterTo(HashSet()) { id -> waiting.any { it.id == id } })
        }
    }

    private fun toggle(photo: AlbumPhoto) = choose(if (photo.id in chosen) chosen - photo.id else chosen + photo.id)

    private fun choose(ids: Set<Long>) {
        chosen = ids
        cells.show(waiting, chosen)
        waiting.filter { it.id in chosen }.forEach(app.suggestions::ask)
        findViewById<TextView>(R.id.chosen).text =
            when {
                waiting.isEmpty() -> getString(R.string.all_labelled)
                chosen.isEmpty() -> getString(R.string.choose_photos)
                else -> resources.getQuantityString(R.plurals.chosen, chosen.size, chosen.size)
            }
        findViewById<Button>(R.id.choose_all).apply {
            isVisible = waiting.isNotEmpty()
            setText(if (chosen.size < waiting.size) R.string.choose_all else R.string.choose_none)
        }
        findViewById<View>(R.id.labelling).isVisible = chosen.isNotEmpty()
        showLabels()
        showUndo()
    }

    /** Classes by how likely they are for the chosen photos, as far as they match the search. */
    private fun showLabels() {
        val sought = "${findViewById<EditText>(R.id.search).text}".trim()
        val likely = likelihoods()
        val names =
            app.settings.classNames
                .filter { app.settings.shown(it).contains(sought, ignoreCase = true) }
                .sortedByDescending { likely[it] ?: 0.0 }
                .take(MOST_LABELS)
        val group = findViewById<ViewGroup>(R.id.classes)
        while (group.childCount > names.size) group.removeViewAt(group.childCount - 1)
        while (group.childCount < names.size) layoutInflater.inflate(R.layout.label_chip, group, true)
        for ((place, name) in names.withIndex()) {
            (group.getChildAt(place) as Button).apply {
                text = app.settings.shown(name)
                emphasise(isPrimary = place == 0 && name in likely)
                setOnClickListener { label(name) }
            }
        }
        findViewById<View>(R.id.no_match).isVisible = names.isEmpty() && sought.isNotEmpty()
    }

    /** The sum of each class's probability over the chosen photos. */
    private fun likelihoods(): Map<String, Double> {
        val sums = HashMap<String, Double>()
        for (photo in waiting.filter { it.id in chosen }) {
            val made = app.suggestions.all.value[photo.id] as? Suggestion.Made
            val found = made?.probabilities ?: photo.suggested?.let { mapOf(it to photo.probability) }.orEmpty()
            for ((name, probability) in found) sums.merge(name, probability, Double::plus)
        }
        return sums
    }

    /** Give the chosen photos this class; null: none, and they are set aside. */
    private fun label(name: String?) {
        val ids = chosen
        last = ids.toLongArray()
        lastLabel = name
        chosen = emptySet()
        if (name == null) app.settings.setAside += ids
        findViewById<EditText>(R.id.search).text = null
        app.scope.launch { app.photos.label(ids, name) }
        showUndo()
    }

    private fun undo() {
        val ids = last?.toSet() ?: return
        last = null
        app.settings.setAside -= ids
        app.scope.launch {
            app.photos.label(ids, null)
            choose(ids)
        }
    }

    private fun showUndo() {
        val count = last?.size ?: 0
        findViewById<View>(R.id.undo_bar).isVisible = count > 0
        val name = lastLabel?.let(app.settings::shown) ?: getString(R.string.none_of_these)
        findViewById<TextView>(R.id.done).text =
            resources.getQuantityString(R.plurals.labelled_as, count, count, name)
    }

    private companion object {
        const val CHOSEN = "chosen"
        const val LAST = "last"
        const val LAST_LABEL = "last_label"
        const val MOST_LABELS = 20
    }
}
