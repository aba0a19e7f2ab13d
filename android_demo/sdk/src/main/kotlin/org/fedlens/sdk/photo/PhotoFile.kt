package org.fedlens.sdk.photo

import org.fedlens.sdk.PhotoException
import org.fedlens.sdk.PhotoException.Reason
import java.nio.Buffer
import java.nio.ByteBuffer
import java.nio.ByteOrder

/** The formats of photos. */
public enum class PhotoFormat {
    /** JPEG, or MPO, of which the first picture counts. */
    JPEG,
    PNG,
    WEBP,
    BMP,
}

/**
 * The format and orientation of a photo's file. Platform decoders accept more formats than preprocessing allows and do
 * not turn photos upright, so read this first. Android 8's own EXIF reader lacks PNG and WebP, and desktop Java has
 * none.
 */
public class PhotoFile private constructor(
    public val format: PhotoFormat,
    public val orientation: Orientation,
) {
    public companion object {
        private const val EXIF = "Exif\u0000\u0000"
        private const val PNG = "\u0089PNG\r\n\u001a\n"
        private val HEIC_BRANDS = setOf("heic", "heix", "hevc", "heim", "heis", "mif1", "msf1")

        /**
         * Read a photo's format, by its first bytes, and its EXIF orientation.
         *
         * @param content The whole file, from the buffer's position to its limit, which stay unchanged. Nothing is
         *     copied, so the file may be memory-mapped.
         * @throws PhotoException The format is not supported, or the EXIF data are malformed. Pixels are not checked.
         */
        public fun read(content: ByteBuffer): PhotoFile {
            val file = Bytes(content.slice())
            return when {
                file.startsWith(0, "\u00ff\u00d8\u00ff") -> PhotoFile(PhotoFormat.JPEG, jpegOrientation(file))
                file.startsWith(0, PNG) -> PhotoFile(PhotoFormat.PNG, pngOrientation(file))
                file.startsWith(0, "RIFF") && file.startsWith(8, "WEBP") ->
                    PhotoFile(PhotoFormat.WEBP, webpOrientation(file))
                file.startsWith(0, "BM") -> PhotoFile(PhotoFormat.BMP, Orientation.UPRIGHT)
                file.startsWith(4, "ftyp") && HEIC_BRANDS.any { file.startsWith(8, it) } ->
                    throw PhotoException(Reason.HEIC, "HEIC, which cannot be used; export it as JPEG")
                else -> throw PhotoException(Reason.UNKNOWN_FORMAT, "neither JPEG, PNG, WebP nor BMP")
            }
        }

        private fun jpegOrientation(file: Bytes): Orientation {
            var at = 2L
            while (file.has(at, 4)) {
                val marker = if (file.byte(at) == 0xff) file.byte(at + 1) else NO_MARKER
                val length = file.u16(at + 2, ByteOrder.BIG_ENDIAN)
                when {
                    // Other bytes and fill bytes may precede a marker, and some markers have no length.
                    marker == NO_MARKER || marker == 0xff -> at += 1
                    marker in 0x00..0x01 || marker in 0xd0..0xd8 -> at += 2
                    marker == START_OF_SCAN || marker == END_OF_IMAGE -> return Orientation.UPRIGHT
                    marker == APP1 && file.startsWith(at + 4, EXIF) ->
                        return exifOrientation(file, at + 4 + EXIF.length, at + 2 + length)
                    else -> at += 2 + length
                }
            }
            return Orientation.UPRIGHT
        }

        private fun pngOrientation(file: Bytes): Orientation {
            var at = PNG.length.toLong()
            while (file.has(at, 8)) {
                val length = file.u32(at, ByteOrder.BIG_ENDIAN)
                if (file.startsWith(at + 4, "eXIf")) return chunkOrientation(file, at + 8, length)
                at += length + 12
            }
            return Orientation.UPRIGHT
        }

        private fun webpOrientation(file: Bytes): Orientation {
            var at = 12L
            while (file.has(at, 8)) {
                val length = file.u32(at + 4, ByteOrder.LITTLE_ENDIAN)
                if (file.startsWith(at, "EXIF")) return chunkOrientation(file, at + 8, length)
                at += 8 + length + (length and 1)
            }
            return Orientation.UPRIGHT
        }

        private fun chunkOrientation(
            file: Bytes,
            start: Long,
            length: Long,
        ): Orientation {
            val prefix = if (file.startsWith(start, EXIF)) EXIF.length else 0
            return exifOrientation(file, start + prefix, start + length)
        }

        /** The orientation in the TIFF data from [start] to before [end]; upright if the tag is incomplete. */
        private fun exifOrientation(
            file: Bytes,
            start: Long,
            end: Long,
        ): Orientation {
            if (start >= end) return Orientation.UPRIGHT
            val order =
                when {
                    file.startsWith(start, "II*\u0000") -> ByteOrder.LITTLE_ENDIAN
                    file.startsWith(start, "MM\u0000*") -> ByteOrder.BIG_ENDIAN
                    else -> throw PhotoException(Reason.DAMAGED, "its EXIF data are malformed")
                }
            val within = file.until(end)
            if (!within.has(start, 8)) return Orientation.UPRIGHT
            val directory = start + within.u32(start + 4, order)
            if (!within.has(directory, 2)) return Orientation.UPRIGHT
            for (entry in 0 until within.u16(directory, order)) {
                val at = directory + 2 + 12L * entry
                if (!within.has(at, 12)) break
                if (within.u16(at, order) == ORIENTATION && within.u32(at + 4, order) == 1L) {
                    return when (within.u16(at + 2, order)) {
                        SHORT -> Orientation.of(within.u16(at + 8, order))
                        LONG -> Orientation.of(within.u32(at + 8, order).coerceAtMost(Int.MAX_VALUE.toLong()).toInt())
                        else -> Orientation.UPRIGHT
                    }
                }
            }
            return Orientation.UPRIGHT
        }

        private const val NO_MARKER = -1
        private const val APP1 = 0xe1
        private const val START_OF_SCAN = 0xda
        private const val END_OF_IMAGE = 0xd9
        private const val ORIENTATION = 274
        private const val SHORT = 3
        private const val LONG = 4
    }
}

/** Unsigned numbers of a file by offset; `has` accepts any offset, reads must stay inside. */
private class Bytes(
    private val buffer: ByteBuffer,
) {
    fun has(
        at: Long,
        count: Int,
    ): Boolean = at >= 0 && at + count <= buffer.limit()

    fun byte(at: Long): Int = buffer.get(at.toInt()).toInt() and 0xff

    fun u16(
        at: Long,
        order: ByteOrder,
    ): Int = buffer.order(order).getShort(at.toInt()).toInt() and 0xffff

    fun u32(
        at: Long,
        order: ByteOrder,
    ): Long = Integer.toUnsignedLong(buffer.order(order).getInt(at.toInt()))

    fun startsWith(
        at: Long,
        text: String,
    ): Boolean = has(at, text.length) && text.indices.all { byte(at + it) == text[it].code }

    /** The same file, cut at [end]. */
    fun until(end: Long): Bytes {
        val cut = buffer.duplicate()
        val plain: Buffer = cut
        plain.limit(minOf(end, buffer.limit().toLong()).toInt())
        return Bytes(cut)
    }
}
