package org.fedlens.sdk

import kotlinx.coroutines.flow.MutableStateFlow
import kotlinx.coroutines.flow.StateFlow
import kotlinx.coroutines.flow.asStateFlow
import java.util.concurrent.CopyOnWriteArrayList

/** Tells events, and the state that follows from them. */
internal class Teller(
    private val onEvent: (Event) -> Unit,
) {
    private val current = MutableStateFlow<ClientState>(ClientState.Idle)
    private val listeners = CopyOnWriteArrayList<Callbacks>()

    // What a repeated request keeps from going on.
    private var beforeRetrying: ClientState = ClientState.Idle

    /** The state, for observers. */
    val state: StateFlow<ClientState> = current.asStateFlow()

    /** Tells [callbacks] too, from now on. */
    fun add(callbacks: Callbacks) {
        listeners += callbacks
    }

    /** Does not tell [callbacks] any more. */
    fun remove(callbacks: Callbacks) {
        listeners -= callbacks
    }

    /** Tells an event, then the state that it leads to. */
    fun happened(event: Event) {
        onEvent(event)
        listeners.forEach { it.onEvent(event) }
        following(event)?.let(::enter)
    }

    /** Tells a state that no event leads to. */
    fun enter(next: ClientState) {
        val before = current.value
        if (before == next) return
        if (next is ClientState.Retrying && before !is ClientState.Retrying) beforeRetrying = before
        current.value = next
        listeners.forEach { it.onState(next) }
    }

    /** What [work] gives; if a request of it was repeated, the state goes back to what it was before. */
    suspend fun <T> resuming(work: suspend () -> T): T {
        // A run whose request is being repeated goes on with that.
        val isRepeating = current.value is ClientState.Retrying
        try {
            return work()
        } finally {
            if (!isRepeating && current.value is ClientState.Retrying) enter(beforeRetrying)
        }
    }

    private fun following(event: Event): ClientState? =
        when (event) {
            is Event.Waiting -> ClientState.Waiting(event.reason, event.retryAfterMs)
            is Event.Retrying -> ClientState.Retrying(event.reason, event.delayMs, event.attempt)
            is Event.Downloaded -> beforeRetrying.takeIf { current.value is ClientState.Retrying }
            is Event.Embedded ->
                (current.value as? ClientState.Preparing)?.copy(done = event.done, total = event.total)
            is Event.RoundStarted -> ClientState.Training(event.task, event.round, 0, 0)
            is Event.Trained -> ClientState.Training(event.task, event.round, event.step, event.steps)
            is Event.RoundReported -> ClientState.Reported(event.task, event.round)
            is Event.RoundFailed -> ClientState.Failed(event.reason.name.lowercase(), event.detail)
            is Event.RoundRefused -> ClientState.Refused(event.code, event.detail, event.task, event.round)
            Event.TasksFinished -> ClientState.Finished
            is Event.Enrolled, is Event.PhotosSkipped -> null
        }
}
