package org.fedlens.sdk.photo

import org.fedlens.sdk.PhotoException
import org.fedlens.sdk.PhotoException.Reason
import java.nio.ByteBuffer
import java.nio.ByteOrder
import java.util.zip.CRC32

/**
 * Photo files without colour profiles, which preprocessing ignores and platform decoders apply. Platform decoders also
 * accept truncated files and invent the missing pixels, so this code refuses them.
 */
public object PlainPhoto {
    /**
     * The same photo without its colour profile.
     *
     * @param content The whole file.
     * @return [content] itself if there is nothing to remove.
     * @throws PhotoException The file is truncated or visibly damaged, or has an unsupported format. Other damage shows
     *     only during decoding.
     */
    public fun of(content: ByteArray): ByteArray =
        when (PhotoFile.read(ByteBuffer.wrap(content)).format) {
            PhotoFormat.JPEG -> jpeg(content)
            PhotoFormat.PNG -> png(content)
            PhotoFormat.WEBP -> webp(content)
            PhotoFormat.BMP -> bmp(content)
        }

    private fun jpeg(content: ByteArray): ByteArray {
        val kept = Pieces(content)
        var at = 2
        while (true) {
            if (at + 2 > content.size) throw cutShort()
            val marker = if (content.unsigned(at) == 0xff) content.unsigned(at + 1) else NO_MARKER
            when {
                marker == END_OF_IMAGE -> return kept.joined()
                // Other bytes and fill bytes may precede a marker, and some markers have no length.
                marker == NO_MARKER || marker == 0xff -> at += 1
                marker in 0x00..0x01 || marker in 0xd0..0xd8 -> at += 2
                else -> {
                    val end = at + 2 + (numbers(content, ByteOrder.BIG_ENDIAN).getShortAt(at + 2))
                    if (end > content.size) throw cutShort()
                    if (marker == APP2 && content.startsWith(at + 4, ICC_PROFILE)) kept.leaveOut(at, end)
                    at = if (marker == START_OF_SCAN) scanEnd(content, end) else end
                }
            }
        }
    }

    /** Offset of the marker after the compressed data that start at [from]. */
    private fun scanEnd(
        content: ByteArray,
        from: Int,
    ): Int {
        var at = from
        while (at + 1 < content.size) {
            if (content.unsigned(at) == 0xff) {
                val next = content.unsigned(at + 1)
                // Of several 0xff in a row the last one counts.
                if (next != 0xff && next != 0 && next !in 0xd0..0xd7) return at
            }
            at++
        }
        throw cutShort()
    }

    private fun png(content: ByteArray): ByteArray {
        val kept = Pieces(content)
        val numbers = numbers(content, ByteOrder.BIG_ENDIAN)
        val crc = CRC32()
        var at = PNG_SIGNATURE_BYTES
        while (true) {
            val length = numbers.getLengthAt(at)
            val end = at + length + PNG_CHUNK_BYTES
            if (end > content.size) throw cutShort()
            val name = String(content, at + 4, 4, Charsets.ISO_8859_1)
            // Upper case marks a critical chunk.
            if (name[0].isUpperCase()) {
                crc.reset()
                crc.update(content, at + 4, 4 + length.toInt())
                if (crc.value.toInt() != numbers.getInt(end.toInt() - 4)) {
                    throw PhotoException(Reason.DAMAGED, "its chunk $name is damaged")
                }
            }
            if (name in PNG_COLOURS) kept.leaveOut(at, end.toInt())
            if (name == "IEND") return kept.joined()
            at = end.toInt()
        }
    }

    private fun webp(content: ByteArray): ByteArray {
        val kept = Pieces(content)
        val numbers = numbers(content, ByteOrder.LITTLE_ENDIAN)
        val end = numbers.getLengthAt(4) + RIFF_BYTES
        if (end > content.size) throw cutShort()
        var flags = 0
        var at = WEBP_BYTES
        while (at + RIFF_BYTES <= end) {
            val length = numbers.getLengthAt(at + 4)
            val next = at + RIFF_BYTES + length + (length and 1)
            // The last chunk need not be padded.
            if (next > end + 1 || next > content.size + 1L) throw cutShort()
            if (content.startsWith(at, "VP8X")) {
                if (at != WEBP_BYTES || length < WEBP_HEADER_BYTES) {
                    throw PhotoException(Reason.DAMAGED, "its header VP8X is too short, or not the first part of it")
                }
                flags = at + RIFF_BYTES
            }
            if (content.startsWith(at, "ICCP")) kept.leaveOut(at, next.toInt())
            at = next.toInt()
        }
        val plain = kept.joined()
        if (plain !== content) {
            numbers(plain, ByteOrder.LITTLE_ENDIAN).putInt(4, numbers.getInt(4) - (content.size - plain.size))
            if (flags != 0) plain[flags] = (plain.unsigned(flags) and WEBP_HAS_PROFILE.inv()).toByte()
        }
        return plain
    }

    private fun bmp(content: ByteArray): ByteArray {
        if (content.size < BMP_BYTES) throw cutShort()
        val numbers = numbers(content, ByteOrder.LITTLE_ENDIAN)
        val isOld = numbers.getInt(14) == BMP_OLD_HEADER_BYTES
        val width = if (isOld) numbers.getShortAt(18).toLong() else numbers.getInt(18).toLong()
        val height = if (isOld) numbers.getShortAt(20).toLong() else Math.abs(numbers.getInt(22).toLong())
        val bits = numbers.getShortAt(if (isOld) 24 else 28)
        // The length of compressed pixels is unknown.
        val isCompressed = !isOld && numbers.getInt(30) !in BMP_UNCOMPRESSED
        val row = (width * bits + 31) / 32 * 4
        val pixels = Integer.toUnsignedLong(numbers.getInt(10))
        if (!isCompressed && height > 0 && row > (content.size - pixels) / height) throw cutShort()
        return content
    }

    private fun cutShort() = PhotoException(Reason.DAMAGED, "its end is missing")

    private fun numbers(
        content: ByteArray,
        order: ByteOrder,
    ): ByteBuffer = ByteBuffer.wrap(content).order(order)

    private fun ByteBuffer.getShortAt(at: Int): Int {
        if (at + 2 > limit()) throw cutShort()
        return getShort(at).toInt() and 0xffff
    }

    private fun ByteBuffer.getLengthAt(at: Int): Long {
        if (at + 4 > limit()) throw cutShort()
        return Integer.toUnsignedLong(getInt(at))
    }

    private fun ByteArray.unsigned(at: Int): Int = this[at].toInt() and 0xff

    private fun ByteArray.startsWith(
        at: Int,
        text: String,
    ): Boolean = at + text.length <= size && text.indices.all { this[at + it] == text[it].code.toByte() }

    /** A file from which parts are removed, in ascending order. */
    private class Pieces(
        private val content: ByteArray,
    ) {
        private val gaps = ArrayList<IntRange>()

        fun leaveOut(
            from: Int,
            end: Int,
        ) {
            gaps += from until minOf(end, content.size)
        }

        fun joined(): ByteArray {
            if (gaps.isEmpty()) return content
            val found = ByteArray(content.size - gaps.sumOf { it.last + 1 - it.first })
            var from = 0
            var at = 0
            for (gap in gaps + listOf(content.size..content.size)) {
                content.copyInto(found, at, from, gap.first)
                at += gap.first - from
                from = gap.last + 1
            }
            return found
        }
    }

    private const val NO_MARKER = -1
    private const val APP2 = 0xe2
    private const val START_OF_SCAN = 0xda
    private const val END_OF_IMAGE = 0xd9
    private const val ICC_PROFILE = "ICC_PROFILE\u0000"
    private const val PNG_SIGNATURE_BYTES = 8
    private const val PNG_CHUNK_BYTES = 12
    private val PNG_COLOURS = setOf("iCCP", "gAMA", "cHRM", "sRGB", "cICP")
    private const val RIFF_BYTES = 8
    private const val WEBP_BYTES = 12
    private const val WEBP_HEADER_BYTES = 10
    private const val WEBP_HAS_PROFILE = 0x20
    private const val BMP_BYTES = 34
    private const val BMP_OLD_HEADER_BYTES = 12
    private val BMP_UNCOMPRESSED = setOf(0, 3, 6)
}
