package org.fedlens.app

import kotlinx.coroutines.CancellationException
import kotlinx.coroutines.Job
import kotlinx.coroutines.NonCancellable
import kotlinx.coroutines.flow.MutableStateFlow
import kotlinx.coroutines.flow.StateFlow
import kotlinx.coroutines.launch
import kotlinx.coroutines.withContext
import org.fedlens.sdk.FedLensException
import org.fedlens.sdk.TransportException
import java.io.IOException

/** Making a phone known to a server. Used in the main thread. */
internal class Joining(
    private val app: FedLensApp,
) {
    sealed interface State {
        data object Idle : State

        data object Asking : State

        data object Joined : State

        /**
         * @property reason Null: something else than the transport.
         * @property detail In the words of who noticed.
         */
        data class Failed(
            val reason: TransportException.Reason?,
            val code: String,
            val detail: String,
        ) : State
    }

    private val now = MutableStateFlow<State>(State.Idle)
    private val scope = app.scope
    private var job: Job? = null
    private var isStopped = false

    val state: StateFlow<State> = now

    /** Asks the server to know this phone. Whatever else it was going to join is forgotten. */
    fun join(link: EnrolmentLink) {
        val settings = app.settings
        if (!settings.hasConsent || settings.isEnrolled || job?.isActive == true) return
        now.value = State.Asking
        isStopped = false
        job =
            scope.launch {
                try {
                    if (settings.link != link) leave()
                    settings.link = link
                    app.learning.withClient { it.checkIn() }
                    settings.isEnrolled = true
                    app.learning.readClasses()
                    app.schedule.apply()
                    now.value = State.Joined
                } catch (cancelled: CancellationException) {
                    // A process that ends leaves what it has begun: the same link goes on with it.
                    if (isStopped) withContext(NonCancellable) { leave() }
                    now.value = State.Idle
                    throw cancelled
                } catch (failure: TransportException) {
                    leave()
                    now.value = State.Failed(failure.reason, failure.code, failure.message.orEmpty())
                } catch (failure: FedLensException) {
                    leave()
                    now.value = State.Failed(null, "", failure.message.orEmpty())
                } catch (failure: IOException) {
                    leave()
                    now.value = State.Failed(null, "", failure.message.orEmpty())
                }
            }
    }

    /** Stops asking. */
    fun cancel() {
        isStopped = true
        job?.cancel()
    }

    /** The screen has shown how it ended. */
    fun seen() {
        if (job?.isActive != true) now.value = State.Idle
    }

    /** A folder belongs to one server: what was begun with another one must not stand in the way. */
    private suspend fun leave() {
        app.learning.erase()
        app.settings.link = null
    }
}
