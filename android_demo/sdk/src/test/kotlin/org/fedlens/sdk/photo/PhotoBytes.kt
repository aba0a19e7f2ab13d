package org.fedlens.sdk.photo

import java.nio.ByteBuffer
import java.util.zip.CRC32

/** End of the first chunk of a PNG file, its header. */
internal const val PNG_HEADER_END = 33

/** A chunk of a PNG file, with its length and checksum. */
internal fun pngChunk(
    kind: String,
    content: ByteArray,
): ByteArray {
    val named = kind.toByteArray() + content
    val crc = CRC32().apply { update(named) }
    return ByteBuffer
        .allocate(8 + named.size)
        .putInt(content.size)
        .put(named)
        .putInt(crc.value.toInt())
        .array()
}

/** The same bytes with [part] put in before the one at [at]. */
internal fun ByteArray.with(
    at: Int,
    part: ByteArray,
): ByteArray = copyOf(at) + part + copyOfRange(at, size)
