package org.fedlens.app

import kotlinx.coroutines.CancellationException
import kotlinx.coroutines.Job
import kotlinx.coroutines.flow.MutableStateFlow
import kotlinx.coroutines.flow.StateFlow
import kotlinx.coroutines.launch
import org.fedlens.sdk.FedLensException
import org.fedlens.sdk.TransportException
import java.io.IOException

/** Enrolment of the phone with a server. Main thread only. */
internal class Joining(
    private val app: FedLensApp,
) {
    sealed interface State {
        data object Idle : State

        data object Asking : State

        data object Joined : State

        /**
         * @property reason Null if the failure is not the transport's.
         * @property detail The message of the exception.
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

    val state: StateFlow<State> = now

    /** Ask the server to enrol this phone, and forget a server that it was joining before. */
    fun join(link: EnrolmentLink) {
        val settings = app.settings
        if (!settings.hasConsent || settings.isEnrolled || job?.isActive == true) return
        now.value = State.Asking
        job =
            scope.launch {
                try {
                    if (settings.link != link) leave()
                    settings.link = link
                    settings.stored()
                    enrol()
                    settings.isEnrolled = true
                    app.learning.readClasses()
                    app.learning.schedule()
                    now.value = State.Joined
                } catch (cancelled: CancellationException) {
                    now.value = State.Idle
                    throw cancelled
                } catch (failure: TransportException) {
                    now.value = State.Failed(failure.reason, failure.code, failure.message.orEmpty())
                } catch (failure: FedLensException) {
                    now.value = State.Failed(null, "", failure.message.orEmpty())
                } catch (failure: IOException) {
                    now.value = State.Failed(null, "", failure.message.orEmpty())
                }
            }
    }

    /** Stop asking. */
    fun cancel() {
        job?.cancel()
    }

    /** Reset the state after the screen has shown the result. */
    fun seen() {
        if (job?.isActive != true) now.value = State.Idle
    }

    /**
     * Enrol, and forget a server that refuses. After another failure the server may know this phone already, whose token
     * is then used up: joining by the same link goes on as the same client.
     */
    private suspend fun enrol() {
        try {
            app.fedlens.client.checkIn()
        } catch (refusal: TransportException) {
            if (refusal.reason == TransportException.Reason.REFUSED) leave()
            throw refusal
        }
    }

    /** Delete the state of a server that is not joined: a folder belongs to one server. */
    private suspend fun leave() {
        app.fedlens.eraseHere()
        app.settings.link = null
        app.settings.stored()
    }
}
