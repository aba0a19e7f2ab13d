package org.fedlens.sdk.client

import org.fedlens.sdk.Pacing
import org.junit.Assert.assertEquals
import org.junit.Assert.assertTrue
import org.junit.Test
import kotlin.random.Random

class PacingTest {
    private val pacing = Pacing(NoJitter)

    @Test
    fun `a client waits as long as the server says`() {
        assertEquals(80L, pacing.pauseMs(80, heldMs = 0))
    }

    @Test
    fun `a server that says to come back in a month gets a request within the hour`() {
        assertEquals(3_600_000L, pacing.pauseMs(30L * 24 * 3_600_000, heldMs = 0))
    }

    @Test
    fun `clients with the same response do not come back at the same moment`() {
        val pauses = List(100) { Pacing(Random(it)).pauseMs(10_000, 0) }
        assertTrue(pauses.all { it in 10_000..11_000 })
        assertTrue(pauses.toSet().size > 50)
    }

    @Test
    fun `a server that sends its clients away at once slows them down, up to half a minute`() {
        // The first time may be chance; then 200 ms, and twice as much each time.
        val pauses = List(11) { pacing.pauseMs(0, heldMs = 1) }
        assertEquals(listOf(0L, 200L, 400L, 800L), pauses.take(4))
        assertEquals(30_000L, pauses.last())
    }

    @Test
    fun `who was held for a while may come back at once`() {
        repeat(5) { pacing.pauseMs(0, heldMs = 1) }
        assertEquals(0L, pacing.pauseMs(0, heldMs = 25_000))
        assertEquals(0L, pacing.pauseMs(0, heldMs = 1))
    }

    private object NoJitter : Random() {
        override fun nextBits(bitCount: Int): Int = 0
    }
}
