package org.fedlens.sdk

import kotlin.random.Random

/**
 * How long a client waits before it checks in again: what the server says, within reason. Remembers how quickly a
 * server has sent its client away, and slows the client down for that.
 */
internal class Pacing(
    private val random: Random = Random.Default,
) {
    private var ownPauseMs = 0L
    private var wasQuick = false

    /**
     * How long to wait now, in milliseconds.
     *
     * @param retryAfterMs What the server asks for.
     * @param heldMs How long it took to answer.
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
        // Clients that were told the same should not all come back at the same moment.
        return ((askedMs + ownPauseMs) * (1 + random.nextDouble() / 10)).toLong()
    }

    private companion object {
        // A server that says to come back in a month will have something else to say earlier.
        const val LONGEST_PAUSE_MS = 3_600_000L

        // A server that answers at once with "wait 0 ms" must not make a client spin.
        const val SHORTEST_POLL_MS = 50L
        const val LONGEST_OWN_PAUSE_MS = 30_000L
    }
}
