package org.fedlens.sdk.photo

import org.junit.Assert.assertArrayEquals
import org.junit.Assert.assertEquals
import org.junit.Assert.assertTrue
import org.junit.Test

class BandedPhotoTest {
    private val width = 41
    private val height = 57
    private val pixels = IntArray(width * height) { (it * 2_654_435_761L).toInt() and 0xffffff }
    private val whole = PixelSource.of(width, height, pixels)

    @Test
    fun `a photo in bands is the photo as a whole, in every orientation and with few bands`() {
        for (orientation in Orientation.entries) {
            val decoded = ArrayList<Int>()
            var open = 0
            val banded =
                BandedPhoto(width, height, bandPixels = 700, decode = { x, y, w, h ->
                    decoded += w * h
                    open++
                    val part = IntArray(w * h).also { whole.read(x, y, w, h, it) }
                    object : PixelSource by PixelSource.of(w, h, part) {
                        override fun close() {
                            open--
                        }
                    }
                }, release = { open-- })
            open++
            val found = banded.use { Photos.prepare(it, orientation, 20, 20) }
            assertArrayEquals(orientation.name, Photos.prepare(whole, orientation, 20, 20), found)
            assertTrue("$decoded", decoded.max() <= 700)
            // 41 lines of 41 pixels in the square, 17 of them in 700 pixels; the first band may begin outside.
            assertTrue("$decoded", decoded.size <= 5)
            assertEquals(0, open)
        }
    }
}
