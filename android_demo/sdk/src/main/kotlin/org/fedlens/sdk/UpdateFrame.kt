package org.fedlens.sdk

import org.fedlens.proto.v1.UpdateHeader
import org.fedlens.sdk.WireException.Reason
import org.fedlens.sdk.blob.Blob
import java.io.OutputStream
import java.nio.ByteBuffer
import java.nio.ByteOrder

/**
 * The body of `PUT .../update` and `PUT .../evaluation`: the length of the header as a little-endian u32, the header,
 * and the blob, if there is one.
 *
 * @property header The header; it names the blob by digest and size, or no blob.
 * @property blob The uploaded blob; null: none.
 * @throws WireException The header is too long, or does not name this blob.
 */
public class UpdateFrame(
    public val header: UpdateHeader,
    public val blob: Blob?,
) {
    private val prefix: ByteArray

    init {
        val raw = header.toByteArray()
        if (raw.size > MAX_HEADER_BYTES) throw headerTooLong(raw.size.toLong())
        val named = !header.blobSha256.isEmpty
        if (named != (blob != null) || (!named && header.blobSize != 0L)) {
            throw WireException(Reason.INCONSISTENT, "the header of an update and its blob do not belong together")
        }
        if (blob != null && header.blobSize != blob.size) {
            throw WireException(
                Reason.INCONSISTENT,
                "a blob of ${blob.size} bytes, the header says ${java.lang.Long.toUnsignedString(header.blobSize)}",
            )
        }
        if (blob != null && !header.blobSha256.toByteArray().contentEquals(blob.digest)) {
            throw WireException(Reason.INCONSISTENT, "the header of an update names another blob")
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
    public val size: Long get() = prefix.size + (blob?.size ?: 0)

    /** SHA-256, 32 bytes, of the whole body, which the server's receipt must repeat. */
    public fun digest(): ByteArray {
        val digest = newSha256()
        digest.update(prefix)
        blob?.forEachChunk(digest::update)
        return digest.digest()
    }

    /**
     * Write the body in chunks; [stream] stays open.
     *
     * @throws java.io.IOException Writing to the stream fails.
     */
    public fun writeTo(stream: OutputStream) {
        stream.write(prefix)
        blob?.writeTo(stream)
    }

    public companion object {
        /** Maximum size of a header in bytes, without the four bytes of its length. */
        public const val MAX_HEADER_BYTES: Int = 64 shl 10

        /**
         * Parse and check a body.
         *
         * @throws WireException The header is damaged, too long, or does not name the blob behind it.
         * @throws BlobException The bytes after the header are not a blob.
         */
        public fun read(body: ByteArray): UpdateFrame {
            if (body.size < Int.SIZE_BYTES) {
                throw WireException(Reason.TRUNCATED, "an update of ${body.size} bytes has no header")
            }
            val length = ByteBuffer.wrap(body).order(ByteOrder.LITTLE_ENDIAN).getInt()
            if (length !in 0..MAX_HEADER_BYTES) throw headerTooLong(Integer.toUnsignedLong(length))
            val end = Int.SIZE_BYTES + length
            if (body.size < end) {
                throw WireException(Reason.TRUNCATED, "an update of ${body.size} bytes; its header alone needs $end")
            }
            val raw = body.copyOfRange(Int.SIZE_BYTES, end)
            val header = Wire.decodeRequest(UpdateHeader.parser(), raw, UpdateHeader::getProtocol)
            val blob = if (body.size > end) Blob.fromBytes(body.copyOfRange(end, body.size)) else null
            return UpdateFrame(header, blob)
        }

        private fun headerTooLong(found: Long) =
            WireException(Reason.TOO_LARGE, "header of $found bytes; at most $MAX_HEADER_BYTES are allowed")
    }
}
