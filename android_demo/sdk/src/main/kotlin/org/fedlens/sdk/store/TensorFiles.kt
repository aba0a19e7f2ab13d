package org.fedlens.sdk.store

import org.fedlens.proto.v1.Dtype
import org.fedlens.sdk.BlobException
import org.fedlens.sdk.StateException
import org.fedlens.sdk.StateException.Reason
import org.fedlens.sdk.blob.Blob
import org.fedlens.sdk.blob.BlobWriter
import org.fedlens.sdk.blob.Layout
import org.fedlens.sdk.blob.Tensor
import org.fedlens.sdk.sha256
import org.fedlens.sdk.toHex
import java.io.File
import java.io.IOException

/**
 * A stored blob that survives the process.
 *
 * @property sha256 Digest, 32 bytes.
 * @property size Size in bytes.
 * @property inline Bytes of a small blob; null if the blob is a file.
 */
internal class StoredBlob(
    val sha256: ByteArray,
    val size: Long,
    val inline: ByteArray?,
)

/**
 * Blobs that must survive the process: small ones in a row of the database, large ones as files in this folder, named
 * by digest.
 */
internal class TensorFiles(
    val folder: File,
) {
    init {
        makeFolder(folder, "tensor folder")
    }

    /** The file of a large blob. */
    fun file(digest: ByteArray): File = File(folder, digest.toHex())

    /**
     * Encode these tensors; a large blob is stored durably when this returns.
     *
     * @param floats Stored type of float tensors, as in [BlobWriter.write].
     * @param base SHA-256 of the base if the tensors are a delta; null: they are not.
     * @throws BlobException A tensor holds a NaN, an infinity, or a number too large for the codec.
     * @throws StateException The disk is full.
     */
    fun store(
        tensors: Map<String, Tensor>,
        floats: Dtype,
        base: ByteArray? = null,
    ): StoredBlob {
        if (Layout.of(BlobWriter.specsOf(tensors, floats), base).size <= MAX_ROW_BYTES) {
            val raw = BlobWriter.encode(tensors, floats, base)
            return StoredBlob(sha256(raw), raw.size.toLong(), raw)
        }
        val written =
            writing("tensor folder $folder") {
                writeDurably(File(folder, FRESH), { file(it.digest) }) { BlobWriter.write(it, tensors, floats, base) }
            }
        return StoredBlob(written.digest, written.size, null)
    }

    /**
     * The tensors of a stored blob.
     *
     * @throws StateException The file is missing or damaged.
     */
    fun open(
        digest: ByteArray,
        inline: ByteArray?,
    ): Blob =
        try {
            if (inline == null) Blob.open(file(digest), digest) else Blob.fromBytes(inline)
        } catch (error: IOException) {
            throw unreadable(error.whyNot(), error)
        } catch (error: BlobException) {
            throw unreadable(error.message, error)
        }

    /** Delete every file but those with these digests. */
    fun sweep(needed: Collection<ByteArray>) {
        val names = needed.mapTo(HashSet()) { it.toHex() }
        folder.listFiles()?.forEach { if (it.name !in names) it.delete() }
    }

    private fun unreadable(
        why: String?,
        cause: Exception,
    ) = StateException(
        Reason.DAMAGED,
        "stored tensors cannot be read: $why; the state folder is damaged: erase this client (eraseHere) to enrol " +
            "as a new one",
        cause,
    )

    companion object {
        /** Maximum size in bytes of a blob in a row. */
        const val MAX_ROW_BYTES: Int = 64 shl 10
        private const val FRESH = "new"
    }
}
