package org.fedlens.app

import android.app.Activity
import android.content.ActivityNotFoundException
import android.content.Intent
import android.os.Bundle
import android.view.View
import android.view.ViewGroup
import android.widget.Button
import android.widget.ImageView
import android.widget.TextView
import kotlinx.coroutines.flow.combine
import kotlinx.coroutines.launch
import org.fedlens.app.Suggestions.Suggestion
import org.fedlens.sdk.album.AlbumPhoto
import org.fedlens.sdk.album.PhotoPicker

/**
 * The home screen, with one thing to do first: adding photos while there are none, else saying what the next one shows,
 * else learning.
 */
class CollectActivity : ScreenActivity() {
    private lateinit var status: StatusCard
    private var problem: String? = null

    override val tab get() = Tab.COLLECT

    override fun make(saved: Bundle?) {
        fill(R.layout.collect, R.string.app_name)
        status = StatusCard(this, app)
        problem = saved?.getString(PROBLEM)
        showProblem()
        findViewById<Button>(R.id.take_photo).setOnClickListener {
            // The next photo would take the place of one that was kept.
            if (app.photos.keepsTaken.value) addTaken() else ask(CaptureProvider.request(), TAKE, R.string.no_camera)
        }
        findViewById<Button>(R.id.label_several).setOnClickListener {
            startActivity(Intent(this, LabelActivity::class.java))
        }
        findViewById<Button>(R.id.pick_photos).setOnClickListener {
            ask(PhotoPicker.intent(MOST_PICKED), PICK, R.string.no_picker)
        }
    }

    override fun onSaveInstanceState(state: Bundle) {
        super.onSaveInstanceState(state)
        state.putString(PROBLEM, problem)
    }

    override fun follow() {
        // Android drops jobs, as after a forced stop.
        app.learning.schedule()
        app.suggestions.retry()
        seen?.launch { app.photos.read() }
        seen?.launch { app.learning.findModel() }
        whileSeen(combine(app.photos.all, app.suggestions.all, ::Pair)) { (photos, suggestions) ->
            if (photos != null) {
                showNext(photos, suggestions)
                arrange(photos)
            }
            showStatus()
        }
        whileSeen(app.photos.adding, ::showAdding)
        whileSeen(app.photos.keepsTaken) { isKept ->
            findViewById<Button>(R.id.take_photo).setText(if (isKept) R.string.add_taken else R.string.take_photo)
        }
        whileSeen(combine(app.fedlens.status, app.network.isThere, ::Pair)) { showStatus() }
    }

    /** Put first what is to be done first: adding photos while there are none. */
    private fun arrange(photos: List<AlbumPhoto>) {
        val cards = findViewById<ViewGroup>(R.id.cards)
        val add = findViewById<View>(R.id.add)
        val place = if (photos.isEmpty()) 0 else cards.childCount - 1
        if (cards.indexOfChild(add) != place) {
            cards.removeView(add)
            cards.addView(add, place)
        }
        findViewById<Button>(R.id.take_photo).emphasise(photos.isEmpty())
    }

    /** Learning comes first where there is nothing to label. */
    private fun showStatus() = status.show(isFirst = !findViewById<View>(R.id.to_label).isVisible)

    private fun showNext(
        photos: List<AlbumPhoto>,
        suggestions: Map<Long, Suggestion>,
    ) {
        val waiting = app.settings.unlabelled(photos)
        val photo = waiting.firstOrNull()
        findViewById<View>(R.id.to_label).isVisible = photo != null
        if (photo == null) return
        findViewById<View>(R.id.label_several).isVisible = waiting.size > 1
        findViewById<TextView>(R.id.to_label_title).text =
            resources.getQuantityString(R.plurals.to_label, waiting.size, waiting.size)
        seen?.let { Pictures.show(findViewById(R.id.photo), photo, it, PREVIEW_EDGE) }
        findViewById<ImageView>(R.id.photo).setOnClickListener { open(photo) }
        app.suggestions.ask(photo)
        val suggestion = suggestions[photo.id]
        findViewById<TextView>(R.id.suggestion).text = said(suggestion, photo)
        val best = (suggestion as? Suggestion.Made)?.best?.key ?: photo.suggested
        findViewById<Button>(R.id.confirm).apply {
            isVisible = best != null
            text = getString(R.string.confirm, app.settings.shown(best.orEmpty()))
            setOnClickListener { if (best != null) app.scope.launch { app.photos.label(photo.id, best) } }
        }
        findViewById<Button>(R.id.choose_class).apply {
            setText(if (best == null) R.string.choose_class else R.string.other_class)
            setOnClickListener { open(photo) }
        }
    }

    private fun said(
        suggestion: Suggestion?,
        photo: AlbumPhoto,
    ): String {
        val suggested = photo.suggested
        return when (suggestion) {
            is Suggestion.Made ->
                suggested(suggestion.best.key, suggestion.best.value)
            Suggestion.Unreadable -> getString(R.string.photo_unreadable)
            else ->
                when {
                    suggested != null -> suggested(suggested, photo.probability)
                    suggestion == Suggestion.Asking -> getString(R.string.suggestion_asking)
                    else -> getString(R.string.suggestion_no_model)
                }
        }
    }

    private fun open(photo: AlbumPhoto) {
        startActivity(PhotoActivity.intent(this, photo.id))
    }

    private fun ask(
        intent: Intent,
        request: Int,
        missing: Int,
    ) {
        forgetProblem()
        try {
            startActivityForResult(intent, request)
        } catch (_: ActivityNotFoundException) {
            report(getString(missing))
        }
    }

    override fun onActivityResult(
        requestCode: Int,
        resultCode: Int,
        data: Intent?,
    ) {
        super.onActivityResult(requestCode, resultCode, data)
        if (resultCode != Activity.RESULT_OK) return
        when (requestCode) {
            TAKE -> addTaken()
            // In the app's scope: adding continues when the user leaves the screen.
            PICK -> app.scope.launch { app.photos.add(PhotoPicker.picked(data)) }
        }
    }

    private fun addTaken() {
        forgetProblem()
        app.scope.launch { app.photos.addTaken() }
    }

    private fun forgetProblem() {
        app.photos.dismissRefused()
        report(null)
    }

    private fun explained(refused: List<Photos.Refusal>): String =
        refused
            .groupingBy { it }
            .eachCount()
            .map { (reason, count) ->
                val text =
                    when (reason) {
                        Photos.Refusal.HEIC -> R.plurals.refused_heic
                        Photos.Refusal.OTHER_FORMAT -> R.plurals.refused_format
                        Photos.Refusal.DAMAGED -> R.plurals.refused_damaged
                        Photos.Refusal.TOO_LARGE -> R.plurals.refused_large
                        Photos.Refusal.CANNOT_BE_READ -> R.plurals.refused_unread
                        Photos.Refusal.NO_ROOM -> R.plurals.refused_no_room
                    }
                resources.getQuantityString(text, count, count)
            }.joinToString("\n")

    private fun showAdding(adding: Photos.Adding) {
        // The next photo would take the place of one that waits to be read.
        findViewById<View>(R.id.take_photo).isEnabled = adding.left == 0
        findViewById<TextView>(R.id.add_text).text =
            if (adding.left == 0) {
                getString(R.string.add_photos_text)
            } else {
                resources.getQuantityString(R.plurals.adding, adding.left, adding.left)
            }
        if (adding.refused.isNotEmpty()) report(explained(adding.refused))
    }

    private fun report(said: String?) {
        problem = said
        showProblem()
    }

    private fun showProblem() {
        findViewById<TextView>(R.id.problem)?.apply {
            text = problem
            isVisible = problem != null
        }
    }

    private companion object {
        const val TAKE = 1
        const val PICK = 2
        const val MOST_PICKED = 100
        const val PREVIEW_EDGE = 720
        const val PROBLEM = "problem"
    }
}
