package org.fedlens.sdk.store

import org.fedlens.sdk.newSha256
import org.fedlens.sdk.toHex
import java.nio.ByteBuffer
import java.nio.ByteOrder
import java.security.SecureRandom
import java.util.Random
import kotlin.math.ln

/**
 * The share of each class among the train photos, with noise that is made once and never again.
 *
 * Each share gets Laplace noise of scale 1/epsilon; nothing is clipped or normalised (docs/edge-client.md). Noise
 * made anew at each ask would average out, and noise that the server can compute could be subtracted. So it comes from
 * the operating system, and the noisy answer is kept and given ever after: one for each list of class names, for life.
 *
 * @param random Where the noise comes from.
 */
internal class KeptAnswers(
    private val state: State,
    private val random: Random = SecureRandom(),
) {
    /** Whether an answer was given for these class names. */
    fun has(classNames: List<String>): Boolean = state.get(key(classNames)) != null

    /**
     * The first answer ever given for these class names; made and stored if there is none.
     *
     * Whatever the photos and epsilon are now, an earlier answer is given again. It is on the disk when this returns.
     *
     * @param counts Photos of each class, not all 0.
     * @param epsilon As [isUsable] allows.
     */
    fun answer(
        classNames: List<String>,
        counts: LongArray,
        epsilon: Double,
    ): DoubleArray {
        require(counts.size == classNames.size) { "${counts.size} counts of ${classNames.size} classes" }
        val key = key(classNames)
        state.get(key)?.let { return doubles(it) }
        val shares = noisyShares(counts, epsilon, random)
        val raw = ByteBuffer.allocate(Double.SIZE_BYTES * shares.size).order(ByteOrder.LITTLE_ENDIAN)
        shares.forEach(raw::putDouble)
        state.set(key to raw.array())
        return shares
    }

    companion object {
        private const val KEY = "label_distribution/"
        private const val MOST_SCALES = 1000

        /** Whether noise of scale 1/epsilon can be made: a number above 0 whose noise is finite. */
        fun isUsable(epsilon: Double): Boolean = epsilon.isFinite() && epsilon > 0 && (MOST_SCALES / epsilon).isFinite()

        /** Each count's share of all with Laplace(0, 1/epsilon) noise; may be negative, need not add up to 1. */
        fun noisyShares(
            counts: LongArray,
            epsilon: Double,
            random: Random,
        ): DoubleArray {
            require(isUsable(epsilon)) { "epsilon is $epsilon" }
            val total = counts.sum().toDouble()
            require(total > 0) { "there is no photo" }
            // The difference of two exponential variables of one rate is Laplace distributed.
            return DoubleArray(counts.size) {
                counts[it] / total + exponential(epsilon, random) - exponential(epsilon, random)
            }
        }

        private fun exponential(
            rate: Double,
            random: Random,
        ): Double = -ln(1 - random.nextDouble()) / rate

        private fun key(classNames: List<String>): String {
            val digest = newSha256()
            for (name in classNames) {
                val raw = name.toByteArray()
                digest.update(
                    ByteBuffer
                        .allocate(Int.SIZE_BYTES)
                        .order(ByteOrder.LITTLE_ENDIAN)
                        .putInt(raw.size)
                        .array(),
                )
                digest.update(raw)
            }
            return KEY + digest.digest().toHex()
        }

        private fun doubles(raw: ByteArray): DoubleArray {
            val values = ByteBuffer.wrap(raw).order(ByteOrder.LITTLE_ENDIAN).asDoubleBuffer()
            return DoubleArray(values.remaining()).also { values.get(it) }
        }
    }
}
