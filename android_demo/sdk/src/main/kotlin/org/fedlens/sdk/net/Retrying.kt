package org.fedlens.sdk.net

import kotlinx.coroutines.delay
import org.fedlens.sdk.TransportException
import org.fedlens.sdk.TransportException.Reason
import java.util.Locale
import kotlin.random.Random

/**
 * A failure after which the same request may succeed.
 *
 * @property afterMs The minimum wait, as asked by the server.
 * @property atOnce True if no further wait is needed.
 */
internal class TryAgain(
    reason: String,
    val afterMs: Long = 0,
    val atOnce: Boolean = false,
    cause: Throwable? = null,
) : Exception(reason, cause)

/**
 * The policy for repeating requests.
 *
 * @param onRetry Called before each wait.
 * @param random Source of the jitter, so that clients that failed together do not come back together.
 * @param nowMs A monotonic clock, in milliseconds.
 */
internal class Retrying(
    private val backoff: Backoff,
    private val onRetry: OnRetry,
    private val random: Random = Random.Default,
    private val nowMs: () -> Long = { System.nanoTime() / NANOS_PER_MS },
) {
    /**
     * Call [attempt] until it does not throw [TryAgain], and return its result.
     *
     * @param limitMs The time limit where the backoff has none; null: none.
     * @throws TransportException `UNREACHABLE`: the time limit has passed.
     */
    suspend fun <T> repeat(
        limitMs: Long? = null,
        attempt: suspend () -> T,
    ): T {
        val started = nowMs()
        val giveUpAfterMs = backoff.giveUpAfterMs ?: limitMs
        var attempts = 0
        while (true) {
            val failure =
                try {
                    return attempt()
                } catch (error: TryAgain) {
                    error
                }
            attempts += 1
            // Only the first repetition is immediate; otherwise the client could spin.
            val own = if (failure.atOnce && attempts == 1) 0L else random.nextLong(mostMs(attempts) + 1)
            val wait = failure.afterMs + own
            val spent = nowMs() - started
            if (giveUpAfterMs != null && spent + wait > giveUpAfterMs) {
                val seconds = String.format(Locale.ROOT, "%.1f", spent / MS_PER_SECOND)
                val message = "given up after $attempts attempts in $seconds s: ${failure.message}"
                throw TransportException(Reason.UNREACHABLE, message, cause = failure.cause)
            }
            onRetry(failure.message.orEmpty(), wait, attempts)
            delay(wait)
        }
    }

    private fun mostMs(attempts: Int): Long {
        // 2^30 exceeds every limit in use, and further doubling would overflow.
        val doublings = minOf(attempts - 1, MOST_DOUBLINGS)
        val grown = backoff.firstMs.toDouble() * (1L shl doublings)
        return if (grown < backoff.mostMs) grown.toLong() else backoff.mostMs
    }

    private companion object {
        const val NANOS_PER_MS = 1_000_000L
        const val MS_PER_SECOND = 1000.0
        const val MOST_DOUBLINGS = 30
    }
}
