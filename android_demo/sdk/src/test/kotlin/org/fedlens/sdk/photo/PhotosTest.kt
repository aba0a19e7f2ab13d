package org.fedlens.sdk.photo

import org.fedlens.sdk.PhotoException
import org.junit.Assert.assertArrayEquals
import org.junit.Assert.assertEquals
import org.junit.Assert.assertThrows
import org.junit.Test

class PhotosTest {
    @Test
    fun `a photo is turned upright whatever its orientation`() {
        // 2 x 3 in red:  1 2     crop and scaling leave a square as it is, so only squares can be compared as a whole;
        //                3 4     this one has 4 pixels.
        val square = PixelSource.of(2, 2, intArrayOf(1 shl 16, 2 shl 16, 3 shl 16, 4 shl 16))
        val upright =
            Orientation.entries.associate { orientation ->
                orientation.tag to Photos.prepare(square, orientation, 2, 2).take(4).map { it.toInt() }
            }
        val wanted =
            mapOf(
                1 to listOf(1, 2, 3, 4),
                2 to listOf(2, 1, 4, 3),
                3 to listOf(4, 3, 2, 1),
                4 to listOf(3, 4, 1, 2),
                5 to listOf(1, 3, 2, 4),
                6 to listOf(3, 1, 4, 2),
                7 to listOf(4, 2, 3, 1),
                8 to listOf(2, 4, 1, 3),
            )
        assertEquals(wanted, upright)
    }

    @Test
    fun `a photo larger than a block of rows is turned and cropped as one pixel after the other`() {
        val (width, height) = 41 to 38
        val pixels = IntArray(width * height) { (it * 2_654_435_761L).toInt() and 0xffffff }
        val source = PixelSource.of(width, height, pixels)
        for (orientation in Orientation.entries) {
            val found = Photos.prepare(source, orientation, 38, 38)
            assertArrayEquals(orientation.name, upright(pixels, width, height, orientation, 38), found)
        }
    }

    @Test
    fun `a photo with too many pixels is refused before they are read`() {
        val endless =
            object : PixelSource {
                override val width = 20_000
                override val height = 20_000

                override fun read(
                    x: Int,
                    y: Int,
                    width: Int,
                    height: Int,
                    into: IntArray,
                ) = error("read")
            }
        val error = assertThrows(PhotoException::class.java) { Photos.prepare(endless, Orientation.UPRIGHT, 8, 8) }
        assertEquals(PhotoException.Reason.TOO_LARGE, error.reason)
    }

    @Test
    fun `weights of a line add up to one and scaling to the same length changes nothing`() {
        for ((from, to) in listOf(3024 to 224, 7 to 13, 1 to 4, 500 to 1, 9 to 9)) {
            val scaling = LineScaling(from, to)
            for (place in 0 until to) {
                val start = scaling.weightsOf(place)
                val count = scaling.last(place) - scaling.first(place)
                val sum = (start until start + count).sumOf { scaling.weights[it] }
                assertEquals("$from to $to at $place", 1.0, sum / 4_194_304.0, 1e-4)
            }
        }
    }

    /** uint8 [3, side, side] of the central square, by the definition of each EXIF tag. */
    private fun upright(
        pixels: IntArray,
        width: Int,
        height: Int,
        orientation: Orientation,
        side: Int,
    ): ByteArray {
        val isTurned = orientation.tag >= 5
        val left = ((if (isTurned) height else width) - side) / 2
        val top = ((if (isTurned) width else height) - side) / 2
        val found = ByteArray(3 * side * side)
        for (i in 0 until side * side) {
            val (x, y) = i % side + left to i / side + top
            val (sx, sy) =
                when (orientation.tag) {
                    1 -> x to y
                    2 -> width - 1 - x to y
                    3 -> width - 1 - x to height - 1 - y
                    4 -> x to height - 1 - y
                    5 -> y to x
                    6 -> y to height - 1 - x
                    7 -> width - 1 - y to height - 1 - x
                    else -> width - 1 - y to x
                }
            for (colour in 0..2) {
                found[colour * side * side + i] = (pixels[sy * width + sx] shr (16 - 8 * colour)).toByte()
            }
        }
        return found
    }
}
