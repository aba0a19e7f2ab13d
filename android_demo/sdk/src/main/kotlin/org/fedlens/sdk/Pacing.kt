package org.fedlens.sdk

import kotlin.random.Random

/**
 * The pause before the next check-in: what the server asks for, within limits. A server that answers at once again and
 * again is asked less often.
 */
internal class Pacing(
    private val random: Random = Random.Default,
) {
    private var ownPauseMs = 0L
    private var wasQuick = false

    /**
     * The next pause, in milliseconds.
     *
     * @param retryAfterMs The pause that the server asks for.
     * @param heldMs The time that the server took to respond.
     */
    fun pauseMs(
        retryAfterMs: Long,
        heldMs: Long,
    ): Long {
        val askedMs = minOf(retryAfterMs, LONGEST_PAUSE_MS)
        val isQuick = askedMs + heldMs < SHORTEST_POLL_MS
        if (!isQuick) {
            ownPauseMs = 0
        } else if (wasQuick) {
            ownPauseMs = (2 * ownPauseMs).coerceIn(4 * SHORTEST_POLL_MS, LONGEST_OWN_PAUSE_MS)
        }
        wasQuick = isQuick
        // Jitter, so that clients with the same response do not all come back at the same moment.
        return ((askedMs + ownPauseMs) * (1 + random.nextDouble() / 10)).toLong()
    }

    companion object {
        // A server that asks for a month's pause may change its mind earlier.
        const val LONGEST_PAUSE_MS = 3_600_000L

        // A server that answers at once with "wait 0 ms" must not make a client spin.
        private const val SHORTEST_POLL_MS = 50L
        private const val LONGEST_OWN_PAUSE_MS = 30_000L
    }
}
