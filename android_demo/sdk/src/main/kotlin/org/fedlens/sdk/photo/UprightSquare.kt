package org.fedlens.sdk.photo

/** The central square of a photo turned upright, read in rows without turning the whole photo. */
internal class UprightSquare(
    private val source: PixelSource,
    private val orientation: Orientation,
) {
    /** Side length in pixels. */
    val side = minOf(source.width, source.height)

    private val isTransposed = orientation.isTransposed
    private val left = ((if (isTransposed) source.height else source.width) - side) / 2
    private val top = ((if (isTransposed) source.width else source.height) - side) / 2

    /** Read [count] rows of the square from row [first] on into [into]; the result locates them there. */
    fun read(
        first: Int,
        count: Int,
        into: IntArray,
    ): Block {
        // Rows of the upright photo are a band of rows or columns of the source, perhaps counted from the other end.
        val across = along(left, side, if (isTransposed) source.height else source.width, orientation.flipsAlong)
        val down = along(top + first, count, if (isTransposed) source.width else source.height, orientation.flipsAcross)
        return if (isTransposed) {
            source.read(down, across, count, side, into)
            Block(count, rowStep = 1, step = count, side, orientation)
        } else {
            source.read(across, down, side, count, into)
            Block(count, rowStep = side, step = 1, side, orientation)
        }
    }

    private fun along(
        first: Int,
        count: Int,
        size: Int,
        isFlipped: Boolean,
    ): Int = if (isFlipped) size - first - count else first

    /** The positions of rows of the square in an array. */
    class Block(
        val rows: Int,
        private val rowStep: Int,
        step: Int,
        side: Int,
        private val orientation: Orientation,
    ) {
        /** Distance between neighbouring pixels of a row. */
        val step = if (orientation.flipsAlong) -step else step

        private val origin = if (orientation.flipsAlong) (side - 1) * step else 0

        /** Index of the first pixel of a row. */
        fun start(row: Int): Int = origin + rowStep * (if (orientation.flipsAcross) rows - 1 - row else row)
    }
}
