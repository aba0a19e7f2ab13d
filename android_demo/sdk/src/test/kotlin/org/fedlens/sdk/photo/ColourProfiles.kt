package org.fedlens.sdk.photo

import java.awt.color.ColorSpace
import java.awt.color.ICC_Profile
import java.io.ByteArrayOutputStream
import java.nio.ByteBuffer
import java.nio.ByteOrder
import java.util.zip.DeflaterOutputStream

/** Photos with a colour profile that would change every pixel: one whose values are linear. */
object ColourProfiles {
    private val linear: ByteArray = ICC_Profile.getInstance(ColorSpace.CS_LINEAR_RGB).data

    /** The same JPEG, PNG, or WebP file with a profile; a PNG file with a gamma beside it. */
    fun addTo(photo: ByteArray): ByteArray =
        when (PhotoFile.read(ByteBuffer.wrap(photo)).format) {
            PhotoFormat.JPEG -> photo.with(2, segment("ICC_PROFILE\u0000\u0001\u0001".toByteArray() + linear))
            PhotoFormat.PNG ->
                photo.with(
                    PNG_HEADER_END,
                    pngChunk("iCCP", name + deflated(linear)) + pngChunk("gAMA", GAMMA),
                )
            else -> webp(photo)
        }

    private val name = "linear\u0000\u0000".toByteArray()

    private fun segment(content: ByteArray): ByteArray =
        ByteBuffer
            .allocate(4 + content.size)
            .putShort(0xffe2.toShort())
            .putShort((2 + content.size).toShort())
            .put(content)
            .array()

    /** A file with one chunk becomes one with a header, a profile and that chunk. */
    private fun webp(photo: ByteArray): ByteArray {
        val header = ByteBuffer.allocate(18).order(ByteOrder.LITTLE_ENDIAN)
        header.put("VP8X".toByteArray()).putInt(10).putInt(0x20)
        // The size of the picture, less one; 24 bits each.
        header.put(10).put(0).put(0).put(8).put(0).put(0)
        val profile = ByteBuffer.allocate(8 + linear.size).order(ByteOrder.LITTLE_ENDIAN)
        profile.put("ICCP".toByteArray()).putInt(linear.size).put(linear)
        val padded = if (linear.size % 2 == 0) profile.array() else profile.array() + 0
        val found = photo.with(12, header.array() + padded)
        ByteBuffer.wrap(found).order(ByteOrder.LITTLE_ENDIAN).putInt(4, found.size - 8)
        return found
    }

    private fun deflated(content: ByteArray): ByteArray {
        val stream = ByteArrayOutputStream()
        DeflaterOutputStream(stream).use { it.write(content) }
        return stream.toByteArray()
    }

    private val GAMMA = byteArrayOf(0, 1, 0x86.toByte(), 0xa0.toByte())
}
