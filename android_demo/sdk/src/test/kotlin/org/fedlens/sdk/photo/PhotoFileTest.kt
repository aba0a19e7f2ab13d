package org.fedlens.sdk.photo

import org.fedlens.sdk.PhotoException
import org.fedlens.sdk.PhotoException.Reason
import org.fedlens.sdk.Vectors
import org.fedlens.sdk.objects
import org.fedlens.sdk.orNamedError
import org.fedlens.sdk.string
import org.junit.Assert.assertEquals
import org.junit.Assert.assertThrows
import org.junit.Test
import java.nio.ByteBuffer
import java.nio.ByteOrder
import kotlin.random.Random

class PhotoFileTest {
    private val photos =
        Vectors.json("photos/photos.json").objects("photos").map { it.string("photo") }.distinct()

    @Test
    fun `formats are found by content and orientations in jpeg and png`() {
        for (name in photos) {
            val found = PhotoFile.read(content(name))
            val suffixes = mapOf("jpg" to "JPEG", "png" to "PNG", "webp" to "WEBP", "bmp" to "BMP")
            assertEquals(name, suffixes[name.substringAfterLast('.')], found.format.name)
            val tag = Regex("orientation-(.)").find(name)?.groupValues?.get(1)?.toInt() ?: 1
            assertEquals(name, tag, found.orientation.tag)
        }
    }

    @Test
    fun `the orientation of a webp file stands in its exif chunk, in either order of bytes`() {
        for (order in listOf(ByteOrder.LITTLE_ENDIAN, ByteOrder.BIG_ENDIAN)) {
            val file = webp("EXIF", exif(order, tag = 274, type = 3, value = 6))
            assertEquals(Orientation.TURNED_LEFT, PhotoFile.read(file).orientation)
        }
    }

    @Test
    fun `the orientation of a jpeg file is found behind bytes that decoders pass over`() {
        val photo = Vectors.bytes("photos/orientation-6.jpg")
        // Behind the first part.
        val at = 4 + ByteBuffer.wrap(photo).getShort(4)
        for (odd in listOf("junk".toByteArray(), byteArrayOf(-1, 0), byteArrayOf(-1, -1))) {
            val file = photo.copyOf(at) + odd + photo.copyOfRange(at, photo.size)
            assertEquals(Orientation.TURNED_LEFT, PhotoFile.read(ByteBuffer.wrap(file)).orientation)
        }
    }

    @Test
    fun `a tag that is no orientation leaves a photo as it is`() {
        val order = ByteOrder.LITTLE_ENDIAN
        val others =
            listOf(
                exif(order, tag = 275, type = 3, value = 6),
                exif(order, tag = 274, type = 3, value = 9),
                exif(order, tag = 274, type = 2, value = 6),
                exif(order, tag = 274, type = 3, value = 6).copyOf(12),
            )
        for (tiff in others) assertEquals(Orientation.UPRIGHT, PhotoFile.read(webp("EXIF", tiff)).orientation)
    }

    @Test
    fun `exif data that are none leave a photo out`() {
        val error = assertThrows(PhotoException::class.java) { PhotoFile.read(webp("EXIF", ByteArray(20))) }
        assertEquals(Reason.DAMAGED, error.reason)
    }

    @Test
    fun `heic and other formats are refused by name`() {
        val heic = ByteBuffer.wrap("\u0000\u0000\u0000\u0018ftypheic".toByteArray(Charsets.ISO_8859_1))
        assertEquals(Reason.HEIC, assertThrows(PhotoException::class.java) { PhotoFile.read(heic) }.reason)
        for (content in listOf("", "x", "GIF89a", "RIFF0000WAVE")) {
            val raw = ByteBuffer.wrap(content.toByteArray())
            assertEquals(Reason.UNKNOWN_FORMAT, assertThrows(PhotoException::class.java) { PhotoFile.read(raw) }.reason)
        }
    }

    @Test
    fun `files that are cut or have flipped bits end in a named error or in an orientation`() {
        val random = Random(20_240_607)
        val tiff = exif(ByteOrder.BIG_ENDIAN, tag = 274, type = 3, value = 6)
        val files = photos.map { Vectors.bytes("photos/$it") } + webp("EXIF", tiff).array()
        for (raw in files) {
            for (length in 0 until minOf(raw.size, 400)) {
                orNamedError { PhotoFile.read(ByteBuffer.wrap(raw, 0, length)) }
            }
            repeat(2_000) {
                val damaged = raw.copyOf()
                repeat(1 + random.nextInt(3)) {
                    // What decides stands at the beginning.
                    val at = random.nextInt(minOf(damaged.size, 300))
                    damaged[at] = (damaged[at].toInt() xor (1 shl random.nextInt(8))).toByte()
                }
                orNamedError { PhotoFile.read(ByteBuffer.wrap(damaged)) }
            }
        }
    }

    private fun content(name: String) = ByteBuffer.wrap(Vectors.bytes("photos/$name"))

    /** TIFF data with one tag of one value. */
    private fun exif(
        order: ByteOrder,
        tag: Int,
        type: Int,
        value: Int,
    ): ByteArray =
        ByteBuffer
            .allocate(26)
            .order(order)
            .put((if (order == ByteOrder.LITTLE_ENDIAN) "II" else "MM").toByteArray())
            .putShort(42)
            .putInt(8)
            .putShort(1)
            .putShort(tag.toShort())
            .putShort(type.toShort())
            .putInt(1)
            .putShort(value.toShort())
            .array()

    private fun webp(
        chunk: String,
        data: ByteArray,
    ): ByteBuffer {
        val file =
            ByteBuffer
                .allocate(20 + data.size)
                .order(ByteOrder.LITTLE_ENDIAN)
                .put("RIFF".toByteArray())
                .putInt(12 + data.size)
                .put("WEBP".toByteArray())
                .put(chunk.toByteArray())
                .putInt(data.size)
                .put(data)
        return ByteBuffer.wrap(file.array())
    }
}
