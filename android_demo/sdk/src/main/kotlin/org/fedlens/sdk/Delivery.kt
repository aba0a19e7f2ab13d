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

/** How an assignment ends: its result reaches the server, or the server is told why there is none. */
internal class Delivery(
    private val transport: Transport,
    private val outbox: Outbox,
    private val journal: Journal,
) {
    /** The oldest result that the server does not have yet. */
    fun waiting(): Result? = outbox.first()

    /**
     * Sends a result; it has left the outbox when this returns.
     *
     * @throws TransportException The server does not know this client, or the receipt is for other bytes.
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
     * Tells the server that there will be no result, and why.
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

    private fun reasonOf(failure: FedLensException): PassException.Reason =
        when (failure) {
            is PassException -> failure.reason
            is BlobException, is ManifestException, is WireException -> PassException.Reason.BUNDLE
            is EngineException ->
                when (failure.reason) {
                    EngineException.Reason.BUNDLE_UNUSABLE -> PassException.Reason.BUNDLE
                    EngineException.Reason.NON_FINITE -> PassException.Reason.NON_FINITE
                    else -> PassException.Reason.UNSUPPORTED
                }
            else -> PassException.Reason.INTERNAL
        }

    private companion object {
        const val MAX_DETAIL_CHARACTERS = 1000
    }
}

/** What [send] gives; notes in the journal's entry [id] what became of it. */
internal suspend fun <T> Journal.following(
    id: Long,
    send: suspend () -> T,
): T {
    // Whoever is cancelled or finds no answer cannot tell whether the request arrived.
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

/** Whether the server refuses for good what was asked, not the client as such. */
internal val TransportException.isAboutTheRequest: Boolean
    get() = reason == TransportException.Reason.REFUSED && code != UNKNOWN_CLIENT

/** The server's word for a client that it does not know. */
internal const val UNKNOWN_CLIENT = "unauthorised"
