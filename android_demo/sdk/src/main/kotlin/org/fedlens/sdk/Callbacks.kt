package org.fedlens.sdk

/**
 * Takes what a client tells, for embedders without coroutines. All are called on threads of the client's, one at a
 * time; they must return quickly and throw nothing.
 */
public interface Callbacks {
    /** Something has happened. */
    public fun onEvent(event: Event)

    /** The client does something else now. */
    public fun onState(state: ClientState) {}

    /**
     * The client has ended; called once.
     *
     * @param error Why, an [Error] such as want of memory as the cause of it; null: every task has ended, or it was
     *     cancelled.
     */
    public fun onEnd(error: Exception?)
}

/** A client at work, as [FedLensClient.start] gives it. */
public interface Running {
    /** Ends it at the next step, in any thread and as often as you like; `onEnd` follows. Nothing is lost. */
    public fun cancel()
}
