package org.fedlens.sdk.net

/**
 * How a request is tried again: waits grow exponentially, with full jitter.
 *
 * @property firstMs Upper bound of the first wait, in milliseconds.
 * @property mostMs Upper bound of every wait, on top of what the server asks for.
 * @property giveUpAfterMs Then the call ends as `UNREACHABLE`; null never gives up.
 */
public data class Backoff(
    val firstMs: Long = 500,
    val mostMs: Long = 30_000,
    val giveUpAfterMs: Long? = null,
) {
    init {
        require(firstMs > 0 && mostMs >= firstMs) { "waits of $firstMs ms up to $mostMs ms" }
        require(giveUpAfterMs == null || giveUpAfterMs >= 0) { "giving up after $giveUpAfterMs ms" }
    }
}

/** Called before each wait with the reason, for people, the wait in milliseconds and the number of attempts so far. */
public typealias OnRetry = (reason: String, delayMs: Long, attempt: Int) -> Unit
