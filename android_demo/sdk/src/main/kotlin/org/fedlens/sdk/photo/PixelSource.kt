package org.fedlens.sdk.photo

/**
 * A decoded photo as it lies in its file, before it is turned upright.
 *
 * On Android a `Bitmap` is one, by `getPixels`, if it was decoded to `ARGB_8888` at full size, `inPremultiplied` being
 * false: the colour below transparent pixels counts.
 */
public interface PixelSource {
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
