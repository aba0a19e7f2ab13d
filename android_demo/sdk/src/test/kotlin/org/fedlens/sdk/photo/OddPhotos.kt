package org.fedlens.sdk.photo

import java.nio.ByteBuffer
import java.nio.ByteOrder

/** Photos that are allowed and rare, or only claim to be photos. */
object OddPhotos {
    val END_OF_IMAGE = bytes(0xff, 0xd9)

    /** The same JPEG with bytes that decoders pass over, by what is odd; `tests/proto/test_photos.py` has them too. */
    fun jpegs(photo: ByteArray): Map<String, ByteArray> {
        val scan = scanStart(photo)
        val escaped = (scan until photo.size).first { photo[it] == 0xff.toByte() && photo[it + 1] == 0.toByte() }
        return mapOf(
            "bytes between two parts" to photo.with(scan, "junk".toByteArray()),
            "an escaped byte between two parts" to photo.with(scan, bytes(0xff, 0)),
            "fill bytes between two parts" to photo.with(scan, bytes(0xff, 0xff)),
            "bytes before the end" to photo.with(photo.size - 2, "junk".toByteArray()),
            "fill bytes within the pixels" to photo.with(escaped, bytes(0xff)),
        )
    }

    /** The same PNG in colour with chunks that it cannot have, by their names. */
    fun pngs(photo: ByteArray): Map<String, ByteArray> =
        mapOf(
            "tRNS" to photo.with(PNG_HEADER_END, pngChunk("tRNS", ByteArray(8))),
            "tIME" to photo.with(PNG_HEADER_END, pngChunk("tIME", ByteArray(3))),
        )

    /** A PNG in colour without a pixel. */
    fun png(
        width: Int,
        height: Int,
    ): ByteArray {
        val size = ByteBuffer.allocate(8).putInt(width).putInt(height).array()
        val header = pngChunk("IHDR", size + bytes(8, 2, 0, 0, 0))
        return bytes(0x89) + "PNG\r\n\u001a\n".toByteArray() + header + pngChunk("IDAT", bytes(0x78)) +
            pngChunk("IEND", ByteArray(0))
    }

    /** A BMP of black pixels of one bit; [width] is a multiple of 32. */
    fun bmp(
        width: Int,
        height: Int,
    ): ByteArray {
        val pixels = width / 8 * height
        val start = 14 + 40 + 8
        return ByteBuffer
            .allocate(start + pixels)
            .order(ByteOrder.LITTLE_ENDIAN)
            .put("BM".toByteArray())
            .putInt(start + pixels)
            .putInt(0)
            .putInt(start)
            .putInt(40)
            .putInt(width)
            .putInt(height)
            .putShort(1)
            .putShort(1)
            .putInt(0)
            .putInt(pixels)
            .array()
    }

    /** Offset of the first part with pixels. */
    fun scanStart(jpeg: ByteArray): Int = jpeg.indices.first { jpeg[it] == 0xff.toByte() && jpeg[it + 1] == SCAN }

    private fun bytes(vararg values: Int) = ByteArray(values.size) { values[it].toByte() }

    private const val SCAN = 0xda.toByte()
}
