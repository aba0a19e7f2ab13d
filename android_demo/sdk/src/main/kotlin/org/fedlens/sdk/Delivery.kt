package org.fedlens.sdk

import org.fedlens.proto.v1.Answer
import org.fedlens.proto.v1.Assignment
import org.fedlens.proto.v1.FailureReason
import org.fedlens.proto.v1.FailureRequest
import org.fedlens.sdk.net.Transport
import org.fedlens.sdk.store.Journal
import org.fedlens.sdk.store.JournalEntry
import org.fedlens.sdk.store.Outbox
import org.fedlens.sdk.store.Result

/** The end of an assignment: the server receives its result, or the reason why there is none. */
internal class Delivery(
    private val transport: Transport,
    private val outbox: Outbox,
    private val journal: Journal,
) {
    /** The oldest result that the server does not have yet. */
    fun waiting(): Result? = outbox.first()

    /**
     * Send a result and remove it from the outbox.
     *
     * @throws TransportException The server does not know this client, or the receipt names other bytes.
     */
    suspend fun deliver(result: Result): Event.Outcome {
        val receipt =
            try {
                if (result.answer == Answer.ANSWER_EVALUATION) {
                    transport.putEvaluation(result.task, result.round, result.update)
                } else {
                    transport.putUpdate(result.task, result.round, result.update)
                }
            } catch (refusal: TransportException) {
                if (!refusal.isAboutTheRequest) throw refusal
                outbox.refused(result)
                return Event.RoundRefused(result.task, result.round, refusal.code, refusal.message.orEmpty())
            }
        val found = receipt.bodySha256.toByteArray()
        if (!found.contentEquals(result.bodySha256)) {
            throw TransportException(
                TransportException.Reason.BAD_ANSWER,
                "task ${result.task}, round ${result.round}: the receipt is for a body with digest " +
                    "${found.toHex()}, sent was ${result.bodySha256.toHex()}",
            )
        }
        outbox.delivered(result)
        return result.reported()
    }

    /**
     * Tell the server why there will be no result.
     *
     * @throws TransportException The server does not know this client.
     */
    suspend fun giveUp(
        assignment: Assignment,
        failure: FedLensException,
    ): Event.RoundFailed {
        val reason = reasonOf(failure)
        val detail = cut(failure.message.orEmpty())
        val request =
            FailureRequest
                .newBuilder()
                .setProtocol(Wire.PROTOCOL)
                .setReason(FailureReason.valueOf("FAILURE_REASON_" + reason.name))
                .setDetail(detail)
                .build()
        try {
            journal.following(journal.failure(assignment.task, assignment.round, request)) {
                transport.reportFailure(assignment.task, assignment.round, request)
            }
        } catch (refusal: TransportException) {
            if (!refusal.isAboutTheRequest) throw refusal
        }
        return Event.RoundFailed(assignment.task, assignment.round, reason, detail)
    }

    private fun cut(text: String): String =
        text.substring(0, text.offsetByCodePoints(0, minOf(text.codePointCount(0, text.length), MAX_DETAIL_CHARACTERS)))

    private fun reasonOf(failure: FedLensException): AssignmentException.Reason =
        when (failure) {
            is AssignmentException -> failure.reason
            is BlobException, is ManifestException, is WireException -> AssignmentException.Reason.BUNDLE
            is EngineException ->
                when (failure.reason) {
                    EngineException.Reason.BUNDLE_UNUSABLE, EngineException.Reason.CRASHED ->
                        AssignmentException.Reason.BUNDLE
                    EngineException.Reason.NON_FINITE -> AssignmentException.Reason.NON_FINITE
                    else -> AssignmentException.Reason.UNSUPPORTED
                }
            else -> AssignmentException.Reason.INTERNAL
        }

    private companion object {
        const val MAX_DETAIL_CHARACTERS = 1000
    }
}

/** Call [send] and record its outcome in the journal's entry [id]. */
internal suspend fun <T> Journal.following(
    id: Long,
    send: suspend () -> T,
): T {
    // After a cancellation or without a response, it is unknown whether the request arrived.
    var outcome = JournalEntry.Outcome.UNKNOWN
    try {
        return send().also { outcome = JournalEntry.Outcome.DELIVERED }
    } catch (refusal: TransportException) {
        if (refusal.reason == TransportException.Reason.REFUSED) outcome = JournalEntry.Outcome.REFUSED
        throw refusal
    } finally {
        ended(id, outcome)
    }
}

/** True if the server refuses the request for good, but not the client as such. */
internal val TransportException.isAboutTheRequest: Boolean
    get() = reason == TransportException.Reason.REFUSED && code != UNKNOWN_CLIENT

/** The server's error code for an unknown client. */
internal const val UNKNOWN_CLIENT = "unauthorised"
