package org.fedlens.sdk.schedule

import android.content.Context
import android.util.Log
import kotlinx.coroutines.CancellationException
import kotlinx.coroutines.currentCoroutineContext
import kotlinx.coroutines.ensureActive
import kotlinx.coroutines.flow.Flow
import kotlinx.coroutines.flow.filter
import kotlinx.coroutines.flow.first
import kotlinx.coroutines.flow.flow
import kotlinx.coroutines.flow.map
import kotlinx.coroutines.flow.mapNotNull
import kotlinx.coroutines.flow.merge
import kotlinx.coroutines.withTimeoutOrNull
import org.fedlens.sdk.ClientState
import org.fedlens.sdk.EngineException
import org.fedlens.sdk.Event
import org.fedlens.sdk.FedLensClient
import org.fedlens.sdk.FedLensException
import org.fedlens.sdk.StateException
import org.fedlens.sdk.TransportException
import org.fedlens.sdk.engine.child.NotStarted
import java.io.IOException

/**
 * The work of one job: round after round, until there is none, or something forbids it.
 *
 * @property hottest Thermal status above which the work ends, as in [Conditions].
 */
internal class Session(
    private val context: Context,
    private val client: FedLensClient,
    private val hottest: Int,
    private val nanoTime: () -> Long = System::nanoTime,
) {
    /**
     * Learn.
     *
     * @param isAskedFor The user has asked for it: one round, which may also begin up to two minutes later.
     */
    suspend fun learn(isAskedFor: Boolean): Ending {
        if (Heat.now(context) > hottest) return TOO_HOT
        return try {
            val ending = merge(rounds(isAskedFor), heat(), stops(isAskedFor)).first()
            if (isAskedFor && ending.left is ClientState.Reported) learnOfModel()
            ending
        } catch (failure: FedLensException) {
            val isFinal = failure.reason in FINAL && generateSequence<Throwable>(failure) { it.cause }.none(::mayPass)
            Ending(!isFinal, client.state.value, if (isFinal) Background.GIVEN_UP else null)
        } catch (_: IOException) {
            Ending(true, client.state.value)
        } catch (_: CancellationException) {
            // An app that closes the client cancels its calls, but not this job.
            currentCoroutineContext().ensureActive()
            Ending(false)
        } catch (failure: Throwable) {
            currentCoroutineContext().ensureActive()
            // An Error too, such as a want of memory: thrown on, it would end the app.
            Log.e("FedLens", "a job has failed", failure)
            Ending(false, client.state.value)
        }
    }

    private fun rounds(isAskedFor: Boolean): Flow<Ending> =
        flow {
            val left =
                try {
                    // A held check-in keeps a phone awake, which only a user who waits may want.
                    while (client.runOnce(isHeld = isAskedFor) is Event.RoundReported && !isAskedFor) Unit
                    client.state.value
                } catch (_: CancellationException) {
                    // By another call, such as forget(): merge() would take it for a quiet end, and wait for ever.
                    currentCoroutineContext().ensureActive()
                    null
                }
            emit(Ending(false, left))
        }

    /** So that predictions are by the model which has come of the round that the user asked for. */
    private suspend fun learnOfModel() {
        try {
            withTimeoutOrNull(MODEL_MS) { client.checkIn() }
        } catch (failure: Exception) {
            // The round is done all the same.
            if (failure !is FedLensException && failure !is IOException) throw failure
        }
    }

    private fun heat(): Flow<Ending> = Heat.changes(context).filter { it > hottest }.map { TOO_HOT }

    /** A phone must not stay awake for a round that is not to come soon, nor for a server that is away. */
    private fun stops(isAskedFor: Boolean): Flow<Ending> {
        val began = nanoTime()
        val patienceMs = if (isAskedFor) PATIENCE_MS else 0
        return client.state.mapNotNull { state ->
            val ranMs = (nanoTime() - began) / NANOS_PER_MS
            when {
                state is ClientState.Waiting && ranMs + state.retryAfterMs > patienceMs -> Ending(false, state)
                state is ClientState.Retrying && state.attempt >= LAST_ATTEMPT -> Ending(true, state)
                else -> null
            }
        }
    }

    private companion object {
        const val PATIENCE_MS = 120_000L
        const val MODEL_MS = 20_000L
        const val LAST_ATTEMPT = 3
        const val NANOS_PER_MS = 1_000_000L
        val TOO_HOT = Ending(true, met = Background.TOO_HOT)

        /** On a busy phone a process may start too slowly once. */
        fun mayPass(failure: Throwable) = failure is NotStarted

        /** Reasons that another attempt would meet again. */
        val FINAL =
            setOf<Enum<*>>(
                EngineException.Reason.RUNTIME_MISSING,
                TransportException.Reason.REFUSED,
                StateException.Reason.BOUND_TO_ANOTHER,
                StateException.Reason.DAMAGED,
                StateException.Reason.NEWER_VERSION,
                StateException.Reason.NOT_ENROLLED,
            )
    }
}

/**
 * How the work of a job has ended.
 *
 * @property comesAgain True if the same job is to come again, later each time.
 * @property left The state of the client; null: as before.
 * @property met What has ended it, if the app is to be told; with [Background.GIVEN_UP] all jobs end.
 */
internal class Ending(
    val comesAgain: Boolean,
    val left: ClientState? = null,
    val met: Background? = null,
)
