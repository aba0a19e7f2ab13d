package org.fedlens.app

import android.content.Context
import android.content.Intent
import android.os.Bundle
import android.view.View
import android.view.ViewGroup
import android.widget.Button
import android.widget.ImageView
import android.widget.ProgressBar
import android.widget.RadioButton
import android.widget.TextView
import kotlinx.coroutines.flow.combine
import kotlinx.coroutines.launch
import org.fedlens.app.Suggestions.Suggestion
import org.fedlens.sdk.album.AlbumPhoto

/** One photo: the model's suggestion, choosing its class, and erasing it. */
class PhotoActivity : ScreenActivity() {
    private var isAskedToErase = false

    // Null until the photo has been read: it may be gone when the screen comes back.
    private var wasLabelled: Boolean? = null

    private val id get() = intent.getLongExtra(ID, 0)

    override fun make(saved: Bundle?) {
        fill(R.layout.photo, R.string.photo)
        isAskedToErase = saved?.getBoolean(ASKED) ?: false
        findViewById<Button>(R.id.erase_photo).setOnClickListener { askToErase(true) }
        findViewById<Button>(R.id.keep_photo).setOnClickListener { askToErase(false) }
        findViewById<Button>(R.id.really_erase).setOnClickListener {
            app.scope.launch { app.photos.erase(id) }
        }
        askToErase(isAskedToErase)
    }

    override fun onSaveInstanceState(state: Bundle) {
        super.onSaveInstanceState(state)
        state.putBoolean(ASKED, isAskedToErase)
    }

    override fun follow() {
        app.suggestions.retry()
        seen?.launch { app.photos.read() }
        seen?.launch { app.learning.findModel() }
        whileSeen(combine(app.photos.all, app.suggestions.all, ::Pair)) { (photos, suggestions) ->
            if (photos == null) return@whileSeen
            val photo = photos.firstOrNull { it.id == id }
            if (photo == null) finish() else show(photo, suggestions[id])
        }
    }

    private fun show(
        photo: AlbumPhoto,
        suggestion: Suggestion?,
    ) {
        app.suggestions.ask(photo)
        findViewById<View>(R.id.photo).contentDescription =
            photo.label?.let { getString(R.string.photo_of, app.settings.shown(it)) }
                ?: getString(R.string.photo_without_class)
        seen?.let { Pictures.show(findViewById(R.id.photo), photo, it, PREVIEW_EDGE) }
        findViewById<TextView>(R.id.suggestion).text = said(photo, suggestion)
        findViewById<View>(R.id.test_photo).isVisible = photo.isTest && photo.label != null
        showClasses(photo, (suggestion as? Suggestion.Made)?.probabilities.orEmpty())
        if (wasLabelled == null) wasLabelled = photo.label != null
    }

    private fun said(
        photo: AlbumPhoto,
        suggestion: Suggestion?,
    ): String =
        when {
            suggestion is Suggestion.Made ->
                suggested(suggestion.best.key, suggestion.best.value)
            suggestion is Suggestion.Unreadable -> getString(R.string.photo_unreadable)
            suggestion is Suggestion.Asking -> getString(R.string.suggestion_asking)
            app.settings.classNames.isEmpty() && photo.label == null -> getString(R.string.no_classes_yet)
            else -> getString(R.string.suggestion_no_model)
        }

    private fun showClasses(
        photo: AlbumPhoto,
        probabilities: Map<String, Double>,
    ) {
        val group = findViewById<ViewGroup>(R.id.classes)
        // A photo may have a class that the model no longer has.
        val names = app.settings.classNames.toMutableList()
        photo.label?.let { if (it !in names) names += it }
        while (group.childCount > names.size) group.removeViewAt(group.childCount - 1)
        while (group.childCount < names.size) layoutInflater.inflate(R.layout.class_row, group, true)
        for ((place, name) in names.withIndex()) {
            val row = group.getChildAt(place)
            val isChosen = name == photo.label
            val probability = probabilities[name]
            val shown = app.settings.shown(name)
            row.findViewById<TextView>(R.id.class_name).text = shown
            row
                .findViewById<ImageView>(R.id.class_chosen)
                .setImageResource(if (isChosen) R.drawable.ic_check else R.drawable.ic_not_chosen)
            row.findViewById<ProgressBar>(R.id.class_bar).apply {
                isVisible = probability != null
                progress = ((probability ?: 0.0) * max).toInt()
            }
            row.findViewById<TextView>(R.id.class_probability).apply {
                isVisible = probability != null
                text = probability?.let(percent::format)
            }
            row.contentDescription =
                if (probability == null) {
                    shown
                } else {
                    getString(R.string.class_with_probability, shown, percent.format(probability))
                }
            row.accessibilityDelegate = Choice(isChosen, RadioButton::class.java)
            row.setOnClickListener { choose(photo, name) }
        }
    }

    private fun choose(
        photo: AlbumPhoto,
        name: String,
    ) {
        app.scope.launch { app.photos.label(photo.id, name) }
        // After labelling a new photo, the user continues with the next one.
        if (wasLabelled == false) finish()
    }

    private fun askToErase(isAsked: Boolean) {
        isAskedToErase = isAsked
        findViewById<View>(R.id.erase_photo).isVisible = !isAsked
        findViewById<View>(R.id.erase_question).isVisible = isAsked
    }

    internal companion object {
        private const val ID = "id"
        private const val ASKED = "asked"
        private const val PREVIEW_EDGE = 1080

        /** Open the screen for one photo. */
        fun intent(
            context: Context,
            id: Long,
        ): Intent = Intent(context, PhotoActivity::class.java).putExtra(ID, id)
    }
}
