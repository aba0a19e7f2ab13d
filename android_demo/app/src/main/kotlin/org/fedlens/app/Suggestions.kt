package org.fedlens.app

import kotlinx.coroutines.flow.MutableStateFlow
import kotlinx.coroutines.flow.StateFlow
import kotlinx.coroutines.flow.update
import kotlinx.coroutines.launch
import org.fedlens.sdk.FedLensException
import org.fedlens.sdk.PhotoException
import org.fedlens.sdk.album.AlbumPhoto
import java.io.IOException

/** The model's suggestions for photos, asked for once per photo and model. Main thread only. */
internal class Suggestions(
    private val app: FedLensApp,
) {
    sealed interface Suggestion {
        /** The model is being asked. */
        data object Asking : Suggestion

        /** There is no model to ask, or it is not available now. */
        data object NoModel : Suggestion

        /** This photo cannot be decoded and will not be trained on. */
        data object Unreadable : Suggestion

        /** The probability of each class, in the model's order. */
        data class Made(
            val probabilities: Map<String, Double>,
        ) : Suggestion {
            val best: Map.Entry<String, Double> = probabilities.maxBy { it.value }
        }
    }

    private val made = MutableStateFlow<Map<Long, Suggestion>>(emptyMap())

    /** Suggestions by photo id. */
    val all: StateFlow<Map<Long, Suggestion>> = made

    /** Ask the model about this photo, unless that has been done. */
    fun ask(photo: AlbumPhoto) {
        if (!app.learning.isAllowed) return
        if (photo.id in made.value) return
        made.update { it + (photo.id to Suggestion.Asking) }
        app.scope.launch {
            val suggestion = suggestion(photo)
            // After a pause, that question is asked again.
            if (!app.learning.isAllowed) return@launch
            made.update { it + (photo.id to suggestion) }
            val best = (suggestion as? Suggestion.Made)?.best ?: return@launch
            if (photo.suggested != best.key || photo.probability != best.value) {
                app.photos.suggest(photo.id, best.key, best.value)
            }
        }
    }

    /** Allow asking again about photos for which there was no model. */
    fun retry() {
        made.update { known -> known.filterValues { it != Suggestion.NoModel } }
    }

    /** Drop every suggestion, because the model has changed. */
    fun forget() {
        made.value = emptyMap()
    }

    private suspend fun suggestion(photo: AlbumPhoto): Suggestion =
        try {
            val probabilities = app.learning.withClient { it.predict(photo.file) }
            app.settings.classNames = probabilities.keys.toList()
            Suggestion.Made(probabilities)
        } catch (_: PhotoException) {
            Suggestion.Unreadable
        } catch (_: FedLensException) {
            Suggestion.NoModel
        } catch (_: IOException) {
            Suggestion.NoModel
        }
}
