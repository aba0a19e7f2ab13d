package org.fedlens.sdk

import org.junit.Assert.assertEquals
import org.junit.Assert.assertNull
import org.junit.Test
import kotlin.math.abs
import kotlin.math.ln

class EvaluationTest {
    @Test
    fun `sums are those of the vectors`() {
        val vector = Vectors.json("evaluation.json")
        val found = Evaluation.of(vector.get("logits").floats(), vector.get("labels").longs(), 3, withConfusion = true)
        assertEquals(vector.get("count").asLong, found.count)
        assertEquals(vector.get("correct").asLong, found.correct)
        val loss = vector.get("loss").asDouble
        assertEquals(loss, found.loss, 1e-9 * abs(loss))
        assertEquals(vector.list("confusion").map { it.asLong }, found.confusion?.toList())
    }

    @Test
    fun `the loss of equal logits is the logarithm of the number of classes`() {
        val found = Evaluation.of(FloatArray(4), longArrayOf(3), 4, withConfusion = false)
        assertEquals(ln(4.0), found.loss, 1e-15)
        assertEquals(0L, found.correct)
        assertNull(found.confusion)
        val sums = found.toSums("trained")
        assertEquals("trained" to 1L, sums.label to sums.count)
    }
}
