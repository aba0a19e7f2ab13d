package org.fedlens.sdk.blob

import org.fedlens.sdk.BlobException
import org.fedlens.sdk.BlobException.Reason
import org.fedlens.sdk.newSha256
import java.io.File
import java.io.OutputStream
import java.io.RandomAccessFile
import java.nio.ByteBuffer
import java.nio.channels.FileChannel

/**
 * Named tensors as one block of bytes, with exactly one encoding; the SHA-256 of the bytes is the blob's name.
 *
 *     offset  bytes  content
 *     0       8      "FEDLENS" and a zero byte
 *     8       4      version, u32, now 1
 *     12      4      header length h, u32
 *     16      h      BlobHeader, tensors sorted by the UTF-8 bytes of their names
 *     ...            each tensor at the next multiple of 64 bytes, zeros between, nothing behind the last one
 *
 * Numbers are little-endian, elements in row-major order; the scales of an int8 tensor precede its values. If [layout]
 * names a base, the tensors are a delta to that blob, see [Differences]. This class reads blobs below 2 GiB, from any
 * number of threads.
 */
public class Blob private constructor(
    private val buffer: ByteBuffer,
    public val layout: Layout,
    known: ByteArray?,
) {
    /**
     * The tensors by name, in the blob's order: a [FloatTensor] for float32, float16 and int8, a [LongTensor] for
     * int64. Every access reads and decodes elements from the blob.
     */
    public val tensors: Map<String, Tensor> =
        layout.specs.withIndex().associateTo(LinkedHashMap()) { (index, spec) ->
            spec.name to storedTensor(buffer, spec, layout.offset(index).toInt())
        }

    private val name: ByteArray by lazy {
        known ?: newSha256().also { hash -> forEachChunk(hash::update) }.digest()
    }

    /** SHA-256, 32 bytes, of the whole blob: its name. */
    public val digest: ByteArray get() = name.copyOf()

    /** Size of the whole blob in bytes. */
    public val size: Long get() = layout.size

    /**
     * Write the blob's bytes in chunks; [stream] stays open.
     *
     * @throws java.io.IOException Writing to the stream fails.
     */
    public fun writeTo(stream: OutputStream): Unit = forEachChunk(stream::write)

    internal fun forEachChunk(use: (ByteArray, Int, Int) -> Unit) {
        val chunk = ByteArray(CHUNK_BYTES)
        var at = 0
        while (at < size) {
            val count = minOf(chunk.size.toLong(), size - at).toInt()
            buffer.run(at, count).get(chunk, 0, count)
            use(chunk, 0, count)
            at += count
        }
    }

    public companion object {
        private const val CHUNK_BYTES = 1 shl 16

        /**
         * Read a blob, checking everything: header, size, padding, finiteness.
         *
         * @param raw The blob's bytes, which are not copied and must not change.
         * @throws BlobException The bytes are not a blob.
         */
        public fun fromBytes(raw: ByteArray): Blob {
            val checker = BlobChecker()
            checker.feed(raw)
            val layout = checker.finish()
            return Blob(ByteBuffer.wrap(raw), layout, checker.digest())
        }

        /**
         * Map a blob's file into memory and check header and size only: for files that were checked when written and
         * that nobody else can change.
         *
         * @param digest SHA-256 of the file, which is trusted; null: computed on demand.
         * @throws BlobException The file is not a blob, or its size is not what the header says.
         * @throws java.io.IOException The file cannot be read.
         */
        public fun open(
            file: File,
            digest: ByteArray? = null,
        ): Blob =
            RandomAccessFile(file, "r").use { opened ->
                val size = opened.length()
                if (size > Int.MAX_VALUE) {
                    throw BlobException(Reason.TOO_LARGE, "a blob of $size bytes; less than 2 GiB can be read here")
                }
                val layout = readLayout(opened, size)
                if (layout.size < size) {
                    val message = "$size bytes found, the blob's header says ${layout.size}"
                    throw BlobException(Reason.TRAILING_BYTES, message)
                }
                if (layout.size > size) throw truncated(size)
                Blob(opened.channel.map(FileChannel.MapMode.READ_ONLY, 0, size), layout, digest?.copyOf())
            }

        private fun readLayout(
            file: RandomAccessFile,
            size: Long,
        ): Layout {
            val prefix = ByteArray(minOf(size, Layout.PREFIX_BYTES.toLong()).toInt())
            file.readFully(prefix)
            // Parsed before anything of the claimed length is allocated: parse() checks that length.
            Layout.parse(prefix)?.let { return it }
            val header = Layout.headerBytes(prefix, prefix.size) ?: throw truncated(size)
            if (Layout.PREFIX_BYTES + header > size) throw truncated(size)
            val start = prefix.copyOf(Layout.PREFIX_BYTES + header)
            file.readFully(start, Layout.PREFIX_BYTES, header)
            return checkNotNull(Layout.parse(start))
        }

        private fun truncated(size: Long) =
            BlobException(Reason.TRUNCATED, "blob truncated: $size bytes found, its header says more")
    }
}
