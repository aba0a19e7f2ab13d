package org.fedlens.app

import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.Job
import kotlinx.coroutines.TimeoutCancellationException
import kotlinx.coroutines.flow.MutableStateFlow
import kotlinx.coroutines.flow.StateFlow
import kotlinx.coroutines.launch
import kotlinx.coroutines.withContext
import kotlinx.coroutines.withTimeout
import org.fedlens.sdk.FedLensException
import java.io.IOException

/** Erasing everything: first the server is told, then everything here goes. Used in the main thread. */
internal class Erasing(
    private val app: FedLensApp,
) {
    sealed interface State {
        data object Idle : State

        data object TellingServer : State

        /** Nothing is erased yet: the server was not reached, or did not do it. */
        data class NotTold(
            val detail: String,
        ) : State

        /**
         * Nothing is left here.
         *
         * @property wasTold The server has deleted what it had.
         * @property isAggregating An update is just being averaged and cannot be taken back.
         */
        data class Done(
            val wasTold: Boolean,
            val isAggregating: Boolean,
        ) : State
    }

    private val now = MutableStateFlow<State>(State.Idle)
    private var job: Job? = null

    val state: StateFlow<State> = now

    /** Has the server forget this phone, then erases what is here; where the server does not, nothing is erased. */
    fun start() =
        once {
            now.value = State.TellingServer
            val isAggregating =
                try {
                    if (app.settings.link == null) false else tell()
                } catch (_: TimeoutCancellationException) {
                    return@once notTold("")
                } catch (failure: FedLensException) {
                    return@once notTold(failure.message.orEmpty())
                } catch (failure: IOException) {
                    return@once notTold(failure.message.orEmpty())
                }
            eraseHere()
            now.value = State.Done(wasTold = true, isAggregating)
        }

    /** Erases what is here, although the server still has what it had. */
    fun startHereAnyway() =
        once {
            eraseHere()
            now.value = State.Done(wasTold = false, isAggregating = false)
        }

    /** The screen has shown how it ended. */
    fun seen() {
        if (job?.isActive != true) now.value = State.Idle
    }

    private fun once(work: suspend () -> Unit) {
        if (job?.isActive != true) job = app.scope.launch { work() }
    }

    private suspend fun tell(): Boolean {
        app.learning.cancel()
        // Who has withdrawn consent must be able to have the server forget: this one message is what they ask for.
        return withTimeout(app.surroundings.patienceMs) { app.learning.withClient(isFarewell = true) { it.forget() } }
    }

    private fun notTold(detail: String) {
        now.value = State.NotTold(detail)
    }

    private suspend fun eraseHere() {
        // Nothing begins anew meanwhile, and a process that ends now leads to the screen from which the rest is erased.
        app.settings.wasWithdrawn = true
        app.settings.hasConsent = false
        app.schedule.cancelAll()
        LearnNotification.remove(app)
        app.learning.erase()
        app.photos.eraseAll()
        withContext(Dispatchers.IO) {
            app.cacheDir.deleteRecursively()
            app.settings.erase()
        }
    }
}
