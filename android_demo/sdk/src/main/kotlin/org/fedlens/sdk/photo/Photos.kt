package org.fedlens.sdk.photo

import org.fedlens.sdk.PhotoException
import org.fedlens.sdk.PhotoException.Reason

/**
 * Preprocessing of a photo's pixels for a program, by version 1 of the rule in `docs/preprocessing.md`: upright,
 * central square, antialiased bilinear scaling on 8-bit values, first to the new width. The arithmetic is this
 * project's own, because every client must compute the same bytes.
 */
public object Photos {
    /** Maximum number of pixels of a photo. */
    public const val MAX_PIXELS: Long = 178_956_970

    private const val COLOURS = 3

    // Number of rows to read at a time; columns, if the photo lies on its side.
    private const val ROWS = 16

    /**
     * Turn a photo upright, crop its central square, and scale it.
     *
     * Memory: a few rows of the photo, and 3 bytes for each of its rows times [width].
     *
     * @param height Pixels, at least 1.
     * @param width Pixels, at least 1.
     * @return uint8 [3, height, width], red, green, blue; [asInput] converts it for programs.
     * @throws PhotoException The photo has more than [MAX_PIXELS] pixels.
     */
    public fun prepare(
        source: PixelSource,
        orientation: Orientation,
        height: Int,
        width: Int,
    ): ByteArray {
        require(height > 0 && width > 0) { "a photo of $width x $height pixels" }
        if (source.width.toLong() * source.height > MAX_PIXELS) {
            val message = "a photo of ${source.width} x ${source.height} pixels; at most $MAX_PIXELS are allowed"
            throw PhotoException(Reason.TOO_LARGE, message)
        }
        val square = UprightSquare(source, orientation)
        return scaleColumns(scaleRows(square, width), square.side, height, width)
    }

    /** The input of a program: pixels / 255, float32 of the same shape, in 0..1. */
    public fun asInput(pixels: ByteArray): FloatArray = FloatArray(pixels.size) { (pixels[it].toInt() and 0xff) / 255f }

    /** The rows of the square scaled to the new width, uint8 [side, width, 3]. */
    private fun scaleRows(
        square: UprightSquare,
        width: Int,
    ): ByteArray {
        val scaling = LineScaling(square.side, width)
        val scaled = ByteArray(Math.multiplyExact(COLOURS * square.side, width))
        val rows = minOf(ROWS, square.side)
        val pixels = IntArray(rows * square.side)
        for (top in 0 until square.side step rows) {
            val block = square.read(top, minOf(rows, square.side - top), pixels)
            for (row in 0 until block.rows) {
                val start = block.start(row)
                for (place in 0 until width) {
                    var red = LineScaling.HALF
                    var green = LineScaling.HALF
                    var blue = LineScaling.HALF
                    var weight = scaling.weightsOf(place)
                    for (i in scaling.first(place) until scaling.last(place)) {
                        val pixel = pixels[start + i * block.step]
                        val k = scaling.weights[weight++]
                        red += k * ((pixel shr 16) and 0xff)
                        green += k * ((pixel shr 8) and 0xff)
                        blue += k * (pixel and 0xff)
                    }
                    val at = COLOURS * ((top + row) * width + place)
                    scaled[at] = LineScaling.rounded(red)
                    scaled[at + 1] = LineScaling.rounded(green)
                    scaled[at + 2] = LineScaling.rounded(blue)
                }
            }
        }
        return scaled
    }

    private fun scaleColumns(
        rows: ByteArray,
        side: Int,
        height: Int,
        width: Int,
    ): ByteArray {
        val scaling = LineScaling(side, height)
        val plane = Math.multiplyExact(height, width)
        val scaled = ByteArray(Math.multiplyExact(COLOURS, plane))
        val sums = IntArray(COLOURS * width)
        for (place in 0 until height) {
            sums.fill(LineScaling.HALF)
            var weight = scaling.weightsOf(place)
            for (i in scaling.first(place) until scaling.last(place)) {
                val k = scaling.weights[weight++]
                val start = i * sums.size
                for (j in sums.indices) sums[j] += k * (rows[start + j].toInt() and 0xff)
            }
            for (j in sums.indices) {
                scaled[j % COLOURS * plane + place * width + j / COLOURS] = LineScaling.rounded(sums[j])
            }
        }
        return scaled
    }
}
