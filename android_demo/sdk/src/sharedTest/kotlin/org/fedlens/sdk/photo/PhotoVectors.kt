package org.fedlens.sdk.photo

import org.fedlens.sdk.Vectors
import org.fedlens.sdk.int
import org.fedlens.sdk.objects
import org.fedlens.sdk.string
import org.junit.Assert.assertArrayEquals
import org.junit.Assert.assertEquals
import org.junit.Assert.assertTrue
import java.nio.ByteBuffer
import java.nio.ByteOrder
import kotlin.math.abs

/**
 * The photos of the test vectors, for any decoder.
 *
 * @param nearly Lossless photos for which it is off by 1/255.
 */
class PhotoVectors(
    private val decoder: PhotoDecoder,
    private val nearly: Set<String> = emptySet(),
) {
    /** Every photo becomes the expected numbers. */
    fun check() {
        val index = Vectors.json("photos/photos.json")
        assertEquals(44, index.objects("photos").size)
        assertEquals(1, index.int("version"))
        for (vector in index.objects("photos")) {
            val name = vector.string("expected")
            val content = Vectors.bytes("photos/${vector.string("photo")}")
            val found = Photos.asInput(prepared(decoder, content, vector.int("height"), vector.int("width")))
            val wanted = expected(name)
            assertEquals(name, wanted.size, found.size)
            if (vector.string("tolerance") == "exact") {
                assertArrayEquals(name, wanted, found, if (vector.string("photo") in nearly) 1.001f / 255 else 0f)
            } else {
                assertEquals("within 3/255, and on average within 0.5/255", vector.string("tolerance"))
                val differences = wanted.indices.map { 255 * abs(wanted[it] - found[it]) }
                assertTrue("$name: ${differences.max()} of 255", differences.max() <= 3.001)
                assertTrue("$name: ${differences.average()} of 255", differences.average() <= 0.5)
            }
        }
    }

    private fun expected(name: String): FloatArray {
        val raw = ByteBuffer.wrap(Vectors.bytes("photos/$name")).order(ByteOrder.LITTLE_ENDIAN).asFloatBuffer()
        return FloatArray(raw.remaining()).also { raw.get(it) }
    }
}

/** A photo's file as the bytes of an input. */
fun prepared(
    decoder: PhotoDecoder,
    content: ByteArray,
    height: Int,
    width: Int,
): ByteArray {
    val orientation = PhotoFile.read(ByteBuffer.wrap(content)).orientation
    return decoder.decode(content).use { Photos.prepare(it, orientation, height, width) }
}
