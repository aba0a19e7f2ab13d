package org.fedlens.sdk

import java.io.IOException

/** The state of a client. During `run` or `runOnce` it is one of the first eight; after a cancellation it is [Idle]. */
public sealed interface ClientState {
    /** Nothing is under way. */
    public data object Idle : ClientState

    /** The client is enrolling with the server. */
    public data object Enrolling : ClientState

    /** The client is asking the server for work; the server may hold the request. */
    public data object CheckingIn : ClientState

    /** There is no work now; [reason] as in [Event.Waiting]. */
    public data class Waiting(
        val reason: String,
        val retryAfterMs: Long,
    ) : ClientState

    /** The client fetches what an assignment needs, and has embedded [done] of [total] new photos. */
    public data class Preparing(
        val task: Long,
        val round: Long,
        val done: Int,
        val total: Int,
    ) : ClientState

    /** The client trains the model: [step] of [steps] steps are done. */
    public data class Training(
        val task: Long,
        val round: Long,
        val step: Long,
        val steps: Long,
    ) : ClientState

    /** A stored result is on its way; it arrives exactly once, whatever happens. */
    public data class Sending(
        val task: Long,
        val round: Long,
    ) : ClientState

    /** A request failed and is repeated after a pause: there is no network, or the server has trouble. */
    public data class Retrying(
        val reason: String,
        val delayMs: Long,
        val attempt: Int,
    ) : ClientState

    /** The server refuses this client ([task] is null) or its result of a round, and says why. */
    public data class Refused(
        val code: String,
        val detail: String,
        val task: Long? = null,
        val round: Long? = null,
    ) : ClientState

    /**
     * The client gave up a round, or ended because of a failure that waiting does not resolve.
     *
     * @property reason Name of the exception's reason in lower case, such as `untrusted`.
     */
    public data class Failed(
        val reason: String,
        val detail: String,
    ) : ClientState

    /** The server has the result of this round. */
    public data class Reported(
        val task: Long,
        val round: Long,
    ) : ClientState

    /** Every task has ended. */
    public data object Finished : ClientState
}

/** The state of a client whose work has ended with this. */
internal fun endedBy(failure: Throwable): ClientState =
    when {
        failure is TransportException && failure.reason == TransportException.Reason.REFUSED ->
            ClientState.Refused(failure.code, failure.message.orEmpty())
        failure is FedLensException ->
            ClientState.Failed(failure.reason.name.lowercase(), failure.message.orEmpty())
        failure is IOException -> ClientState.Failed("input_output", failure.message.orEmpty())
        else -> ClientState.Failed("internal", failure.toString())
    }
