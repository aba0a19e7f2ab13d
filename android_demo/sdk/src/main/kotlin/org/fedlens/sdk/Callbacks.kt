package org.fedlens.sdk

/**
 * Callbacks of a client, for embedders without coroutines. The client calls them on its own threads, one at a time;
 * they must return quickly and must not throw.
 */
public interface Callbacks {
    /** Something has happened. */
    public fun onEvent(event: Event)

    /** The client's state has changed. */
    public fun onState(state: ClientState) {}

    /**
     * The client has ended; called once.
     *
     * @param error The failure, whose cause may be an [Error] such as lack of memory; null if every task has ended or
     *     the client was cancelled.
     */
    public fun onEnd(error: Exception?)
}

/** A running client, as returned by [FedLensClient.start]. */
public interface Running {
    /**
     * Stop the client at the next step; `onEnd` follows. Callable from any thread and repeatedly; no result is lost.
     */
    public fun cancel()
}
