package org.fedlens.sdk.store

import org.fedlens.sdk.KeyedHash
import org.fedlens.sdk.newSha256
import org.fedlens.sdk.toHex
import java.nio.ByteBuffer
import java.nio.ByteOrder
import java.security.SecureRandom
import java.util.Random
import kotlin.math.ln

/**
 * Noisy shares of the classes among the train photos; the noise is drawn once and never again.
 *
 * Each share gets Laplace noise of scale 1/epsilon, without clipping or normalisation (docs/edge-client.md). Fresh
 * noise for each request would average out, and noise that the server can compute could be subtracted. So the noise
 * comes from the operating system, and each list of class names gets one answer for life.
 *
 * @param random Source of the noise.
 */
internal class NoisyAnswers(
    private val state: StateFolder,
    private val random: Random = SecureRandom(),
) {
    /** True if an answer was given for these class names. */
    fun has(classNames: List<String>): Boolean = state.get(key(classNames)) != null

    /**
     * The answer for these class names, computed and stored on first use.
     *
     * An earlier answer is repeated even if the photos or epsilon have changed. The answer is on the disk when this
     * returns.
     *
     * @param counts Number of photos of each class, not all 0.
     * @param epsilon Epsilon that [isUsable] accepts.
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
        /** The beginning of the answers' keys in the state folder. */
        const val KEY = "label_distribution/"

        private const val MOST_SCALES = 1000

        /** True if epsilon is above 0 and noise of scale 1/epsilon is finite. */
        fun isUsable(epsilon: Double): Boolean = epsilon.isFinite() && epsilon > 0 && (MOST_SCALES / epsilon).isFinite()

        /**
         * The share of each count plus Laplace(0, 1/epsilon) noise; shares may be negative and need not add up to 1.
         */
        fun noisyShares(
            counts: LongArray,
            epsilon: Double,
            random: Random,
        ): DoubleArray {
            require(isUsable(epsilon)) { "epsilon is $epsilon" }
            val total = counts.sum().toDouble()
            require(total > 0) { "there is no photo" }
            // The difference of two exponential variables of equal rate has a Laplace distribution.
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
                digest.update(KeyedHash.littleEndian(raw.size))
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
