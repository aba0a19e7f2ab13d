package org.fedlens.app

import android.database.sqlite.SQLiteDatabase
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

/** Erasing everything: first the server is told, then everything on the phone is deleted. Main thread only. */
internal class Erasing(
    private val app: FedLensApp,
) {
    sealed interface State {
        data object Idle : State

        data object TellingServer : State

        /** Nothing is erased yet: the server could not be reached, or did not forget the phone. */
        data class NotTold(
            val detail: String,
        ) : State

        /** Something could not be deleted here. */
        data class NotErased(
            val detail: String,
        ) : State

        /**
         * Nothing is left on the phone.
         *
         * @property wasTold The server has deleted what it had.
         * @property isAggregating An update is being averaged and cannot be taken back.
         */
        data class Done(
            val wasTold: Boolean,
            val isAggregating: Boolean,
        ) : State
    }

    private val now = MutableStateFlow<State>(State.Idle)
    private var job: Job? = null

    val state: StateFlow<State> = now

    init {
        // The process ended while the server was told. It may have forgotten the phone, which must not enrol anew.
        if (app.settings.isErasing) app.settings.withdraw()
    }

    /**
     * Tell the server to forget this phone, then erase everything here; erase nothing if the server does not comply.
     */
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
            eraseHere(wasTold = true, isAggregating)
        }

    /** Erase everything here, although the server keeps what it has. */
    fun startHereAnyway() = once { eraseHere(wasTold = false, isAggregating = false) }

    /** Reset the state after the screen has shown the result. */
    fun seen() {
        if (job?.isActive != true) now.value = State.Idle
    }

    private fun once(work: suspend () -> Unit) {
        if (job?.isActive != true) job = app.scope.launch { work() }
    }

    // The server must forget the phone even after consent was withdrawn: the owner asks for this one message.
    private suspend fun tell(): Boolean {
        app.settings.isErasing = true
        app.settings.stored()
        app.learning.schedule()
        return withTimeout(app.patienceMs) { app.fedlens.forget() }
    }

    private fun notTold(detail: String) {
        app.settings.isErasing = false
        app.learning.schedule()
        now.value = State.NotTold(detail)
    }

    private suspend fun eraseHere(
        wasTold: Boolean,
        isAggregating: Boolean,
    ) {
        // First, so that nothing starts meanwhile. If the process ends now, the app opens on the screen that erases the
        // rest.
        app.settings.withdraw()
        app.settings.stored()
        app.learning.schedule()
        now.value =
            try {
                app.photos.eraseAll()
                withContext(Dispatchers.IO) {
                    app.cacheDir.deleteRecursively()
                    app.platform.floors?.let(SQLiteDatabase::deleteDatabase)
                    app.settings.erase()
                }
                State.Done(wasTold, isAggregating)
            } catch (failure: FedLensException) {
                State.NotErased(failure.message.orEmpty())
            } catch (failure: IOException) {
                State.NotErased(failure.message.orEmpty())
            }
    }
}
