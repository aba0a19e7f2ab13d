package org.fedlens.sdk

/**
 * What a client is doing, under one name at any moment. While a `run` or `runOnce` is under way it is one of the first
 * eight; [Idle] also stands for one that was cancelled.
 */
public sealed interface ClientState {
    /** Nothing is under way. */
    public data object Idle : ClientState

    /** The server is being asked to know this client. */
    public data object Enrolling : ClientState

    /** The server is being asked for work; it may hold the answer. */
    public data object CheckingIn : ClientState

    /** There is no work now; reasons as in [Event.Waiting]. */
    public data class Waiting(
        val reason: String,
        val retryAfterMs: Long,
    ) : ClientState

    /** There is work, and what it needs is being fetched, and [done] of [total] new photos have been embedded. */
    public data class Preparing(
        val task: Long,
        val round: Long,
        val done: Int,
        val total: Int,
    ) : ClientState

    /** The model is being trained: [step] of [steps] are done. */
    public data class Training(
        val task: Long,
        val round: Long,
        val step: Long,
        val steps: Long,
    ) : ClientState

    /** A result is stored and on its way; it arrives once, whatever happens now. */
    public data class Sending(
        val task: Long,
        val round: Long,
    ) : ClientState

    /** A request did not succeed and is sent again after a pause: no network, or a server in trouble. */
    public data class Retrying(
        val reason: String,
        val delayMs: Long,
        val attempt: Int,
    ) : ClientState

    /** The server does not want this client ([task] is null) or its result of that round, and says why. */
    public data class Refused(
        val code: String,
        val detail: String,
        val task: Long? = null,
        val round: Long? = null,
    ) : ClientState

    /**
     * The round was given up, or the client has ended because something does not mend by waiting.
     *
     * @property reason Name of the reason within its exception's class, in lower case, such as `untrusted`.
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
