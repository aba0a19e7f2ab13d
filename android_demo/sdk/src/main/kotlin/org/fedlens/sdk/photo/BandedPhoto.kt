package org.fedlens.sdk.photo

/**
 * A photo with one band in memory at a time: a band of rows if whole rows are read, of columns if whole columns are. To
 * decode a band, the decoder reads the file up to the band's end, so bands are as large as memory allows.
 *
 * @param bandPixels Maximum number of pixels of a band of more than one row or column.
 * @param decode Decodes a rectangle, given its left column, top row, width and height.
 * @param release Releases the decoder.
 */
internal class BandedPhoto(
    override val width: Int,
    override val height: Int,
    private val bandPixels: Int,
    private val decode: (x: Int, y: Int, width: Int, height: Int) -> PixelSource,
    private val release: () -> Unit = {},
) : PixelSource {
    private class Band(
        val x: Int,
        val y: Int,
        val pixels: PixelSource,
    )

    private var band: Band? = null
    private var buffer = IntArray(0)

    override fun read(
        x: Int,
        y: Int,
        width: Int,
        height: Int,
        into: IntArray,
    ) {
        val isRows = width >= height
        val lines = maxOf(1, bandPixels / maxOf(width, height))
        // A read may start in one band and end in the next.
        var line = if (isRows) y else x
        val end = if (isRows) y + height else x + width
        while (line < end) {
            val first = line / lines * lines
            val until = minOf(end, first + lines)
            if (isRows) {
                val band = at(x, first, width, minOf(lines, this.height - first))
                copy(band, 0, line - first, width, until - line, into, (line - y) * width, width)
            } else {
                val band = at(first, y, minOf(lines, this.width - first), height)
                copy(band, line - first, 0, until - line, height, into, line - x, width)
            }
            line = until
        }
    }

    override fun close() {
        band?.pixels?.close()
        band = null
        release()
    }

    private fun at(
        x: Int,
        y: Int,
        width: Int,
        height: Int,
    ): PixelSource {
        val here = band
        if (here != null && here.x == x && here.y == y && here.pixels.width == width && here.pixels.height == height) {
            return here.pixels
        }
        here?.pixels?.close()
        band = null
        return decode(x, y, width, height).also { band = Band(x, y, it) }
    }

    private fun copy(
        from: PixelSource,
        x: Int,
        y: Int,
        width: Int,
        height: Int,
        into: IntArray,
        at: Int,
        stride: Int,
    ) {
        if (buffer.size < width * height) buffer = IntArray(width * height)
        from.read(x, y, width, height, buffer)
        for (row in 0 until height) {
            buffer.copyInto(into, at + row * stride, row * width, (row + 1) * width)
        }
    }
}
