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
import java.io.IOException

/** The work of one job: round after round, until there is none, or something forbids it. */
internal class Session(
    private val context: Context,
    private val client: FedLensClient,
    private val jobs: LearningJobs,
    private val nanoTime: () -> Long = System::nanoTime,
) {
    private val hottest = jobs.conditions.hottest

    /** True if the phone is hotter than the conditions allow. */
    val isTooHot: Boolean get() = Heat.now(context) > hottest

    /**
     * Learn.
     *
     * @param isAskedFor The user has asked for it: one round, which may also begin up to two minutes later.
     * @return True if the same job is to come again, later each time.
     */
    suspend fun learn(isAskedFor: Boolean): Boolean {
        jobs.left.value = null
        if (isTooHot) {
            jobs.background.value = Background.TOO_HOT
            return true
        }
        return try {
            val end = merge(rounds(isAskedFor), heat(), stops(isAskedFor)).first()
            if (isAskedFor && jobs.left.value is ClientState.Reported) learnOfModel()
            jobs.background.value = if (end == End.TOO_HOT) Background.TOO_HOT else jobs.rest
            end != End.DONE
        } catch (failure: FedLensException) {
            jobs.left.value = client.state.value
            val isFinal = failure.reason in FINAL
            if (isFinal) jobs.cancel()
            jobs.background.value = if (isFinal) Background.GIVEN_UP else jobs.rest
            !isFinal
        } catch (_: IOException) {
            jobs.left.value = client.state.value
            jobs.background.value = jobs.rest
            true
        } catch (failure: RuntimeException) {
            // Cancellation is a RuntimeException too; an app that closes the client cancels its calls.
            currentCoroutineContext().ensureActive()
            if (failure !is CancellationException) Log.e("FedLens", "a job has failed", failure)
            jobs.background.value = jobs.rest
            false
        }
    }

    private fun rounds(isAskedFor: Boolean): Flow<End> =
        flow {
            while (client.runOnce() is Event.RoundReported && !isAskedFor) Unit
            jobs.left.value = client.state.value
            emit(End.DONE)
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

    private fun heat(): Flow<End> = Heat.changes(context).filter { it > hottest }.map { End.TOO_HOT }

    /** A phone must not stay awake for a round that is not to come soon, nor for a server that is away. */
    private fun stops(isAskedFor: Boolean): Flow<End> {
        val began = nanoTime()
        val patienceMs = if (isAskedFor) PATIENCE_MS else 0
        return client.state.mapNotNull { state ->
            val ranMs = (nanoTime() - began) / NANOS_PER_MS
            when {
                state is ClientState.Waiting && ranMs + state.retryAfterMs > patienceMs -> End.DONE
                state is ClientState.Retrying && state.attempt >= LAST_ATTEMPT -> End.LATER
                else -> null
            }?.also { jobs.left.value = state }
        }
    }

    private enum class End { DONE, LATER, TOO_HOT }

    private companion object {
        const val PATIENCE_MS = 120_000L
        const val MODEL_MS = 20_000L
        const val LAST_ATTEMPT = 3
        const val NANOS_PER_MS = 1_000_000L

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
