package org.fedlens.sdk.training

import org.fedlens.proto.v1.BlobSet
import org.fedlens.proto.v1.Difference
import org.fedlens.sdk.BlobException
import org.fedlens.sdk.KeyedHash
import org.fedlens.sdk.TransportException
import org.fedlens.sdk.blob.Blob
import org.fedlens.sdk.blob.BlobWriter
import org.fedlens.sdk.blob.Differences
import org.fedlens.sdk.store.Cache
import org.fedlens.sdk.store.Fetch
import org.fedlens.sdk.store.Pins
import org.fedlens.sdk.store.Wanted
import java.io.File
import java.io.RandomAccessFile

/**
 * The reconstruction of a set from a cached base and a fetched delta.
 *
 * The caller checks the digest of the result and otherwise fetches the whole blob, so a wrong delta costs time and
 * nothing else.
 *
 * @param cache Cache that may hold the base, and that stores the delta.
 * @param fetched Called with the digest and size of the delta if it was fetched.
 */
internal class Restoring(
    private val cache: Cache,
    private val fetch: Fetch,
    private val fetched: (ByteArray, Long) -> Unit,
) {
    /**
     * Reconstruct the blob of a set from its delta and write it to [file].
     *
     * @return True if the blob was written, unchecked; false if the base is not cached, or the delta is unavailable or
     *     does not match. Then the file is unchanged or empty.
     * @throws TransportException The server cannot be reached or trusted.
     * @throws org.fedlens.sdk.StateException The disk is full.
     * @throws java.io.IOException The file cannot be written.
     */
    suspend fun restore(
        entry: BlobSet,
        file: File,
    ): Boolean {
        val way = entry.difference
        val isShorter = java.lang.Long.compareUnsigned(way.size, entry.size) < 0
        // A blob named as its own delta would wait for itself.
        if (!isShorter || way.sha256 == entry.sha256 || way.base.size() != KeyedHash.DIGEST_BYTES) return false
        val digest = way.sha256.toByteArray()
        Pins().use { pins ->
            if (!cache.holdPresent(way.base.toByteArray(), pins)) return false
            try {
                if (cache.hold(listOf(Wanted(digest, way.size)), pins, fetch).isNotEmpty()) fetched(digest, way.size)
                add(way, file)
            } catch (_: BlobException) {
                return false
            } catch (error: TransportException) {
                if (error.reason in NOT_TO_BE_HAD) return false
                throw error
            }
        }
        return true
    }

    private fun add(
        way: Difference,
        file: File,
    ) {
        val base = Blob.open(cache.file(way.base.toByteArray()), way.base.toByteArray())
        val difference = Blob.open(cache.file(way.sha256.toByteArray()), way.sha256.toByteArray())
        if (!difference.layout.base.contentEquals(way.base.toByteArray())) {
            throw BlobException(
                BlobException.Reason.UNEXPECTED,
                "the difference names another base than the assignment",
            )
        }
        val sums = Differences.add(base.tensors, difference.tensors)
        var isWritten = false
        try {
            file.outputStream().buffered().use { BlobWriter.write(it, sums) }
            isWritten = true
        } finally {
            // A download would continue from a partial file.
            if (!isWritten) RandomAccessFile(file, "rw").use { it.setLength(0) }
        }
    }

    private companion object {
        val NOT_TO_BE_HAD = setOf(TransportException.Reason.BAD_ANSWER, TransportException.Reason.REFUSED)
    }
}
