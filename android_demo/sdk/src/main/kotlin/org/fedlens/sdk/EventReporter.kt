package org.fedlens.sdk

import kotlinx.coroutines.asContextElement
import kotlinx.coroutines.channels.BufferOverflow
import kotlinx.coroutines.flow.Flow
import kotlinx.coroutines.flow.MutableSharedFlow
import kotlinx.coroutines.flow.MutableStateFlow
import kotlinx.coroutines.flow.StateFlow
import kotlinx.coroutines.flow.asSharedFlow
import kotlinx.coroutines.flow.asStateFlow
import kotlinx.coroutines.withContext
import java.util.concurrent.CopyOnWriteArrayList

/** The dispatcher of events, and of the states that follow from them. */
internal class EventReporter(
    private val onEvent: (Event) -> Unit,
) {
    private val current = MutableStateFlow<ClientState>(ClientState.Idle)
    private val shared =
        MutableSharedFlow<Event>(extraBufferCapacity = KEPT, onBufferOverflow = BufferOverflow.DROP_OLDEST)
    private val listeners = CopyOnWriteArrayList<Callbacks>()

    // The state to return to after a repeated request.
    private var beforeRetrying: ClientState = ClientState.Idle

    // On the threads of a request aside, while it runs.
    private val isAside = ThreadLocal<Boolean>()

    @Volatile private var isWorking = false

    /** The state, for observers. */
    val state: StateFlow<ClientState> = current.asStateFlow()

    /** The events, for observers; those who are slow miss the oldest. */
    val events: Flow<Event> = shared.asSharedFlow()

    /** Add a listener. */
    fun add(callbacks: Callbacks) {
        listeners += callbacks
    }

    /** Remove a listener. */
    fun remove(callbacks: Callbacks) {
        listeners -= callbacks
    }

    // Synchronized, because predictions report beside the client's thread.

    /** Report an event, then the state that follows from it; the state of a run does not follow from a request aside. */
    @Synchronized
    fun report(event: Event) {
        onEvent(event)
        shared.tryEmit(event)
        listeners.forEach { it.onEvent(event) }
        if (!isWorking || isAside.get() != true) following(event)?.let(::enter)
    }

    /** Enter a state that follows from no event. */
    @Synchronized
    fun enter(next: ClientState) {
        val before = current.value
        if (before == next) return
        if (next is ClientState.Retrying && before !is ClientState.Retrying) beforeRetrying = before
        current.value = next
        listeners.forEach { it.onState(next) }
    }

    /** Run [work], which the state reflects; one at a time. */
    suspend fun <T> working(work: suspend () -> T): T {
        isWorking = true
        try {
            return work()
        } finally {
            isWorking = false
        }
    }

    /** Run [work] aside; if one of its requests was repeated, the earlier state is restored afterwards. */
    suspend fun <T> aside(work: suspend () -> T): T {
        try {
            return withContext(isAside.asContextElement(true)) { work() }
        } finally {
            // A concurrent run that repeats a request keeps its state.
            if (!isWorking && current.value is ClientState.Retrying) enter(beforeRetrying)
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
            is Event.Enrolled, is Event.PhotosSkipped, is Event.ModelAdopted -> null
        }

    private companion object {
        /** Events for an observer that is slow. */
        const val KEPT = 256
    }
}
