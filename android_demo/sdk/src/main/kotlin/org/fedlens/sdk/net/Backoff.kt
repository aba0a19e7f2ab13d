package org.fedlens.sdk.net

/**
 * Exponential backoff with full jitter between attempts of a request.
 *
 * @property firstMs Upper bound of the first wait, in milliseconds.
 * @property mostMs Upper bound of every wait, on top of what the server asks for.
 * @property giveUpAfterMs Milliseconds after which the call fails as `UNREACHABLE`; null: never.
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

/** A callback before each wait: the reason, for people, the wait in milliseconds, and the number of attempts so far. */
public typealias OnRetry = (reason: String, delayMs: Long, attempt: Int) -> Unit
