package org.fedlens.sdk.photo

import java.io.Closeable

/** A decoded photo as it lies in its file, before it is turned upright. */
public interface PixelSource : Closeable {
    /** Pixels. */
    public val width: Int

    /** Pixels. */
    public val height: Int

    /**
     * Copies a rectangle, row by row, to the beginning of [into].
     *
     * @param x Its left column.
     * @param y Its top row.
     * @param into Takes 8 bits each of red, green and blue, the lowest byte being blue; the highest byte does not
     *     count.
     */
    public fun read(
        x: Int,
        y: Int,
        width: Int,
        height: Int,
        into: IntArray,
    )

    /** Lets go of the pixels, which may be outside the heap; they cannot be read any more. */
    override fun close() {
        // Pixels in the heap go with the last one who holds them.
    }

    public companion object {
        /** A photo over [pixels], int [height, width], which are not copied. */
        public fun of(
            width: Int,
            height: Int,
            pixels: IntArray,
        ): PixelSource = PixelArray(width, height, pixels)
    }
}

private class PixelArray(
    override val width: Int,
    override val height: Int,
    private val pixels: IntArray,
) : PixelSource {
    init {
        require(width > 0 && height > 0 && pixels.size.toLong() == width.toLong() * height) {
            "${pixels.size} pixels of a photo of $width x $height"
        }
    }

    override fun read(
        x: Int,
        y: Int,
        width: Int,
        height: Int,
        into: IntArray,
    ) {
        for (row in 0 until height) {
            val first = (y + row) * this.width + x
            pixels.copyInto(into, row * width, first, first + width)
        }
    }
}
