package org.fedlens.sdk.photo

import java.io.Closeable

/** A decoded photo in the file's orientation. */
public interface PixelSource : Closeable {
    /** Pixels. */
    public val width: Int

    /** Pixels. */
    public val height: Int

    /**
     * Copy a rectangle, row by row, to the start of [into].
     *
     * @param x Left column of the rectangle.
     * @param y Top row of the rectangle.
     * @param into Receives 8 bits each of red, green and blue, with blue in the lowest byte; the highest byte is
     *     undefined.
     */
    public fun read(
        x: Int,
        y: Int,
        width: Int,
        height: Int,
        into: IntArray,
    )

    /** Release the pixels, which may be outside the heap; they cannot be read afterwards. */
    override fun close() {
        // Pixels in the heap are garbage-collected.
    }

    public companion object {
        /** A photo backed by [pixels], int [height, width], which are not copied. */
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
