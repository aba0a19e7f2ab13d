package org.fedlens.sdk.photo

import org.fedlens.sdk.PhotoException
import org.fedlens.sdk.PhotoException.Reason
import org.fedlens.sdk.Vectors
import org.junit.Assert.assertEquals
import org.junit.Assert.assertThrows
import org.junit.Test
import java.nio.ByteBuffer
import java.nio.ByteOrder

class PlainPhotoTest {
    private val plain = Vectors.bytes("photos/lossless.webp")
    private val pixels = plain.copyOfRange(12, plain.size)
    private val profile = chunk("ICCP", ByteArray(100))

    @Test
    fun `a webp file loses its profile and says so in its header`() {
        val tagged = webp(chunk("VP8X", byteArrayOf(0x20) + ByteArray(9)), profile, pixels)
        val wanted = webp(chunk("VP8X", ByteArray(10)), pixels)
        assertEquals(wanted.toList(), PlainPhoto.of(tagged).toList())
    }

    @Test
    fun `a webp file whose header is too short or in another place is left out`() {
        val header = chunk("VP8X", ByteArray(10))
        val wrong =
            listOf(
                webp(profile, header, pixels),
                webp(profile, pixels, header),
                webp(header, profile, pixels, header),
                webp(chunk("VP8X", ByteArray(9)), profile, pixels),
                webp(profile, chunk("VP8X", ByteArray(0))),
            )
        for (file in wrong) {
            val error = assertThrows(PhotoException::class.java) { PlainPhoto.of(file) }
            assertEquals(Reason.DAMAGED, error.reason)
        }
    }

    private fun webp(vararg chunks: ByteArray): ByteArray {
        val named = chunks.fold("WEBP".toByteArray()) { file, chunk -> file + chunk }
        return chunk("RIFF", named)
    }

    private fun chunk(
        name: String,
        content: ByteArray,
    ): ByteArray =
        ByteBuffer
            .allocate(8 + content.size + content.size % 2)
            .order(ByteOrder.LITTLE_ENDIAN)
            .put(name.toByteArray())
            .putInt(content.size)
            .put(content)
            .array()
}
