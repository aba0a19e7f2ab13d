package org.fedlens.sdk.photo

/**
 * Weights for antialiased bilinear scaling of a line of [from] pixels to [to].
 *
 * The triangle filter, widened by the factor of reduction, with integer weights that add up to about 2^22: Pillow's
 * arithmetic, which Android's scaling does not reproduce.
 */
internal class LineScaling(
    private val from: Int,
    private val to: Int,
) {
    private val firsts = IntArray(to)
    private val starts = IntArray(to + 1)

    /** Weights of all new pixels, consecutively. */
    val weights: IntArray

    init {
        val ratio = from.toDouble() / to
        val reach = maxOf(ratio, 1.0)
        for (place in 0 until to) {
            val centre = (place + 0.5) * ratio
            firsts[place] = maxOf(0, (centre - reach + 0.5).toInt())
            starts[place + 1] = starts[place] + minOf(from, (centre + reach + 0.5).toInt()) - firsts[place]
        }
        weights = IntArray(starts[to])
        for (place in 0 until to) weigh(place, (place + 0.5) * ratio, reach)
    }

    /** Index of the first source pixel of the new pixel [place]. */
    fun first(place: Int): Int = firsts[place]

    /** Index after the last source pixel of the new pixel [place]. */
    fun last(place: Int): Int = firsts[place] + starts[place + 1] - starts[place]

    /** Index of the first weight of the new pixel [place]. */
    fun weightsOf(place: Int): Int = starts[place]

    private fun weigh(
        place: Int,
        centre: Double,
        reach: Double,
    ) {
        val shares = DoubleArray(last(place) - first(place)) { triangle((first(place) + it - centre + 0.5) / reach) }
        // In this order: another order of summation would change the last digits.
        var total = 0.0
        for (share in shares) total += share
        for ((i, share) in shares.withIndex()) weights[starts[place] + i] = (0.5 + ONE * (share / total)).toInt()
    }

    private fun triangle(distance: Double): Double = maxOf(0.0, 1.0 - Math.abs(distance))

    companion object {
        private const val BITS = 22
        private const val ONE = 1 shl BITS

        /** Initial value of a weighted sum, so that it is rounded to nearest. */
        const val HALF = 1 shl (BITS - 1)

        /** The pixel value of a weighted sum. */
        fun rounded(sum: Int): Byte = (sum shr BITS).coerceIn(0, 255).toByte()
    }
}
