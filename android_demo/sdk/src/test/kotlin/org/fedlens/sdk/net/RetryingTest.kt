package org.fedlens.sdk.net

import kotlinx.coroutines.ExperimentalCoroutinesApi
import kotlinx.coroutines.test.TestScope
import kotlinx.coroutines.test.currentTime
import kotlinx.coroutines.test.runTest
import org.fedlens.sdk.TransportException
import org.junit.Assert.assertEquals
import org.junit.Assert.assertNotEquals
import org.junit.Assert.assertThrows
import org.junit.Assert.assertTrue
import org.junit.Test
import kotlin.random.Random

/** The times of repeated requests: ever later, never all clients at once, and never before the server allows. */
@OptIn(ExperimentalCoroutinesApi::class)
class RetryingTest {
    private val waits = mutableListOf<Long>()

    /** Fills [waits] with those of a request that fails so often before it succeeds. */
    private suspend fun TestScope.fail(
        times: Int,
        backoff: Backoff = Backoff(),
        seed: Int = 1,
        failure: () -> TryAgain = { TryAgain("busy") },
    ): String {
        var left = times
        val retrying =
            Retrying(backoff, { _, delayMs, _ -> waits += delayMs }, Random(seed), testScheduler::currentTime)
        return retrying.repeat { if (left-- > 0) throw failure() else "done" }
    }

    @Test
    fun `what succeeds at once is not repeated`() =
        runTest {
            assertEquals("done", fail(0))
            assertEquals(emptyList<Long>(), waits)
        }

    @Test
    fun `waits are random so that clients do not come back together`() =
        runTest {
            repeat(20) { seed -> fail(1, seed = seed) { TryAgain("busy", afterMs = 100) } }
            assertTrue("$waits", waits.all { it in 100L..600L })
            assertTrue("$waits", waits.toSet().size > 10)
        }

    @Test
    fun `waits grow up to their limit and are really waited for`() =
        runTest {
            fail(40, Backoff(firstMs = 1_000, mostMs = 4_000))
            // Each is drawn from 0 to 1, 2, 4, 4, ... s, also when the doublings are more than a number can hold.
            assertTrue("$waits", waits[0] <= 1_000 && waits[1] <= 2_000 && waits.all { it <= 4_000 })
            // 38 draws from 0 to 4 s are all below 1 s with a probability of 4^-38.
            assertTrue("$waits", waits.drop(2).max() > 1_000)
            assertEquals(waits.sum(), currentTime)
        }

    @Test
    fun `who may repeat at once does so once, and not before the server says`() =
        runTest {
            fail(3) { TryAgain("again", afterMs = 30, atOnce = true) }
            assertEquals(30L, waits[0])
            assertNotEquals(listOf(30L, 30L), waits.drop(1))
            assertTrue("$waits", waits.all { it >= 30 })
        }

    @Test
    fun `what cannot succeed in time is given up with the last reason`() =
        runTest {
            val backoff = Backoff(firstMs = 1, mostMs = 1, giveUpAfterMs = 9_000)
            val error = failureOf { fail(9, backoff) { TryAgain("storage-full: no room", afterMs = 4_000) } }
            assertEquals(TransportException.Reason.UNREACHABLE, error.reason)
            assertEquals("given up after 3 attempts in 8.0 s: storage-full: no room", error.message)
            assertEquals(2, waits.size)
        }

    @Test
    fun `anything else than a passing failure goes to the caller`() =
        runTest {
            val retrying = Retrying(Backoff(), { _, _, _ -> error("not reported") })
            val outcome = runCatching { retrying.repeat<Unit> { throw IllegalStateException("the test's") } }
            assertEquals("the test's", outcome.exceptionOrNull()?.message)
        }

    @Test
    fun `limits that make no sense are refused`() {
        assertThrows(IllegalArgumentException::class.java) { Backoff(firstMs = 0) }
        assertThrows(IllegalArgumentException::class.java) { Backoff(firstMs = 10, mostMs = 9) }
        assertThrows(IllegalArgumentException::class.java) { Backoff(giveUpAfterMs = -1) }
    }
}
