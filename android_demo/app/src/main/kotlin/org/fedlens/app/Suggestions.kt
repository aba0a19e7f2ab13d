package org.fedlens.app

import kotlinx.coroutines.flow.MutableStateFlow
import kotlinx.coroutines.flow.StateFlow
import kotlinx.coroutines.flow.update
import kotlinx.coroutines.launch
import org.fedlens.sdk.FedLensException
import org.fedlens.sdk.PhotoException
import org.fedlens.sdk.album.AlbumPhoto
import java.io.IOException

/** What the model takes photos for, asked once for each until the model changes. Used in the main thread. */
internal class Suggestions(
    private val app: FedLensApp,
) {
    sealed interface Suggestion {
        /** The model is being asked. */
        data object Asking : Suggestion

        /** There is no model to ask, or it cannot be had now. */
        data object NoModel : Suggestion

        /** This photo cannot be decoded: nobody will train on it. */
        data object Unreadable : Suggestion

        /** The probability of each class, in the model's order. */
        data class Made(
            val probabilities: Map<String, Double>,
        ) : Suggestion {
            val best: Map.Entry<String, Double> = probabilities.maxBy { it.value }
        }
    }

    private val made = MutableStateFlow<Map<Long, Suggestion>>(emptyMap())

    /** By a photo's id. */
    val all: StateFlow<Map<Long, Suggestion>> = made

    /** Asks the model about this photo, if that has not been done. */
    fun ask(photo: AlbumPhoto) {
        if (!app.learning.isAllowed) return
        if (photo.id in made.value) return
        made.update { it + (photo.id to Suggestion.Asking) }
        app.scope.launch {
            val suggestion = suggestion(photo)
            made.update { it + (photo.id to suggestion) }
            val best = (suggestion as? Suggestion.Made)?.best ?: return@launch
            if (photo.suggested != best.key || photo.probability != best.value) {
                app.photos.suggest(photo.id, best.key, best.value)
            }
        }
    }

    /** There may be a model now where there was none: photos are asked about again. */
    fun retry() {
        made.update { known -> known.filterValues { it != Suggestion.NoModel } }
    }

    /** There is another model: what the one before said is of no interest. */
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
