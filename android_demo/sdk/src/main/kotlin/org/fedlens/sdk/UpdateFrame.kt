package org.fedlens.sdk

import org.fedlens.proto.v1.UpdateHeader
import org.fedlens.sdk.WireException.Reason
import org.fedlens.sdk.blob.Blob
import java.io.OutputStream
import java.nio.ByteBuffer
import java.nio.ByteOrder

/**
 * The body of `PUT .../update` and `PUT .../evaluation`: the length of the header as a little-endian u32, the header,
 * and the blobs, one after another.
 *
 * @property header The header; it names every blob by digest and size.
 * @property blobs The uploaded blobs, in the order of the header.
 * @throws WireException The header is too long, or does not name these blobs.
 */
internal class UpdateFrame(
    val header: UpdateHeader,
    val blobs: List<Blob>,
) {
    private val prefix: ByteArray

    init {
        val raw = header.toByteArray()
        if (raw.size > MAX_HEADER_BYTES) {
            throw WireException(
                Reason.TOO_LARGE,
                "header of ${raw.size} bytes; at most $MAX_HEADER_BYTES are allowed",
            )
        }
        if (header.uploadsCount != blobs.size) {
            throw WireException(
                Reason.INCONSISTENT,
                "${blobs.size} blobs, the header of the update names ${header.uploadsCount}",
            )
        }
        for ((named, blob) in header.uploadsList.zip(blobs)) {
            if (named.size != blob.size) {
                throw WireException(
                    Reason.INCONSISTENT,
                    "a blob of ${blob.size} bytes, the header says ${java.lang.Long.toUnsignedString(named.size)}",
                )
            }
            if (!named.sha256.toByteArray().contentEquals(blob.digest)) {
                throw WireException(Reason.INCONSISTENT, "the header of an update names another blob")
            }
        }
        prefix =
            ByteBuffer
                .allocate(Int.SIZE_BYTES + raw.size)
                .order(ByteOrder.LITTLE_ENDIAN)
                .putInt(raw.size)
                .put(raw)
                .array()
    }

    /** Size of the whole body in bytes: its `Content-Length`. */
    val size: Long get() = prefix.size + blobs.sumOf { it.size }

    /** SHA-256, 32 bytes, of the whole body, which the server's receipt must repeat. */
    fun digest(): ByteArray {
        val digest = newSha256()
        digest.update(prefix)
        for (blob in blobs) blob.forEachChunk(digest::update)
        return digest.digest()
    }

    /**
     * Write the body in chunks; [stream] stays open.
     *
     * @throws java.io.IOException Writing to the stream fails.
     */
    fun writeTo(stream: OutputStream) {
        stream.write(prefix)
        for (blob in blobs) blob.writeTo(stream)
    }

    companion object {
        /** Maximum size of a header in bytes, without the four bytes of its length. */
        const val MAX_HEADER_BYTES: Int = 64 shl 10
    }
}
