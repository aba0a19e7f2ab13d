package org.fedlens.sdk.store

import org.fedlens.jvm.JdbcDatabase
import org.junit.After
import org.junit.Assert.assertArrayEquals
import org.junit.Assert.assertEquals
import org.junit.Assert.assertFalse
import org.junit.Assert.assertTrue
import org.junit.Before
import org.junit.Rule
import org.junit.Test
import org.junit.rules.TemporaryFolder
import java.util.Random
import kotlin.math.abs
import kotlin.math.ln

class NoisyAnswersTest {
    @get:Rule
    val folder = TemporaryFolder()

    private lateinit var state: StateFolder
    private val classes = listOf("cat", "dog")

    @Before
    fun open() {
        state = StateFolder.open(folder.root, SERVER, JdbcDatabase::open)
    }

    @After
    fun close() {
        state.close()
    }

    @Test
    fun `the noise has the moments of a Laplace distribution`() {
        // Laplace(0, b = 1/2): mean 0, variance 2 b^2 = 0.5, mean of |x| = b = 0.5, and half of them below 0.
        val counts = LongArray(20_001).also { it[20_000] = 1 }
        val noise = NoisyAnswers.noisyShares(counts, 2.0, Random(1)).copyOf(20_000)
        // Standard errors: of the mean sqrt(0.5 / 20000) = 0.005, of |x| 0.0035, of the variance about 0.008.
        assertEquals(0.0, noise.average(), 0.02)
        assertEquals(0.5, noise.map { abs(it) }.average(), 0.015)
        assertEquals(0.5, noise.map { it * it }.average(), 0.03)
        assertEquals(0.5, noise.count { it < 0 } / 20_000.0, 0.015)
    }

    @Test
    fun `shares are neither clipped nor normalised`() {
        // The expected noise is drawn in the same order: two exponentials of rate 0.1 for each class.
        val random = Random(3)
        val noise = List(2) { -ln(1 - random.nextDouble()) / 0.1 + ln(1 - random.nextDouble()) / 0.1 }
        val shares = NoisyAnswers.noisyShares(longArrayOf(3, 1), 0.1, Random(3))
        assertArrayEquals(doubleArrayOf(0.75 + noise[0], 0.25 + noise[1]), shares, 1e-12)
        assertTrue(shares.any { it < 0 || it > 1 })
    }

    @Test
    fun `a very large epsilon leaves the shares as they are`() {
        val shares = NoisyAnswers.noisyShares(longArrayOf(3, 1), 1e9, Random(0))
        assertArrayEquals(doubleArrayOf(0.75, 0.25), shares, 1e-6)
    }

    @Test
    fun `an epsilon without finite noise is none`() {
        for (epsilon in listOf(0.0, -1.0, Double.NaN, Double.POSITIVE_INFINITY, 1e-310)) {
            assertFalse("$epsilon", NoisyAnswers.isUsable(epsilon))
        }
        assertTrue(NoisyAnswers.isUsable(0.1))
    }

    @Test
    fun `the first answer is given again whatever is asked later, also after the folder was opened again`() {
        val first = NoisyAnswers(state).answer(classes, longArrayOf(3, 1), 1.0)
        assertArrayEquals(first, NoisyAnswers(state).answer(classes, longArrayOf(0, 9), 50.0), 0.0)
        state.close()
        open()
        assertTrue(NoisyAnswers(state).has(classes))
        assertArrayEquals(first, NoisyAnswers(state).answer(classes, longArrayOf(3, 1), 1.0), 0.0)
    }

    @Test
    fun `two clients draw other noise`() {
        val other = StateFolder.open(folder.newFolder("other"), SERVER, JdbcDatabase::open)
        val answers = listOf(state, other).map { NoisyAnswers(it).answer(classes, longArrayOf(1, 1), 1.0).toList() }
        other.close()
        assertEquals(2, answers.toSet().size)
    }

    @Test
    fun `other class names get an answer of their own, and names are told apart by where they end`() {
        val answers = NoisyAnswers(state)
        val lists = listOf(classes, classes.reversed(), listOf("a", "bc"), listOf("ab", "c"))
        lists.forEach { names ->
            assertFalse(answers.has(names))
            answers.answer(names, longArrayOf(1, 1), 1.0)
        }
        assertEquals(4, lists.map { answers.answer(it, longArrayOf(1, 1), 1.0).toList() }.toSet().size)
    }
}
