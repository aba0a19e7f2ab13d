package org.fedlens.sdk.store

import kotlinx.coroutines.CoroutineDispatcher
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.NonCancellable
import kotlinx.coroutines.sync.Mutex
import kotlinx.coroutines.sync.withLock
import kotlinx.coroutines.withContext
import org.fedlens.sdk.KeyedHash
import org.fedlens.sdk.StateException
import org.fedlens.sdk.TransportException
import org.fedlens.sdk.TransportException.Reason
import org.fedlens.sdk.sha256
import org.fedlens.sdk.toHex
import java.io.Closeable
import java.io.File
import java.io.FileNotFoundException
import java.io.IOException
import java.io.RandomAccessFile

/** A function that appends the missing bytes of a blob to a file, such as [org.fedlens.sdk.net.Transport.fetch]. */
internal fun interface Fetch {
    suspend fun fetch(
        sha256: ByteArray,
        into: File,
        maxBytes: Long,
    )
}

/**
 * A cheaper way to a blob: it writes the file and returns true, or returns false and leaves the file unchanged or
 * empty.
 */
internal fun interface Shortcut {
    suspend fun write(into: File): Boolean
}

/**
 * A part or blob to obtain.
 *
 * @property digest Digest, 32 bytes.
 * @property size Size in bytes.
 * @property shortcut A way to try before fetching; its result counts only if the digest matches.
 */
internal class Wanted(
    val digest: ByteArray,
    val size: Long,
    val shortcut: Shortcut? = null,
)

/**
 * The cache of parts and blobs, by digest.
 *
 *     parts/<sha256>        complete, verified when it came and again when a process first meets it
 *     incoming/<sha256>     a beginning, which the next attempt goes on from
 *
 * Everything here can be fetched again, so nothing is synced, and digests reveal damage. One client at a time uses the
 * cache, from any number of coroutines.
 *
 * @param folder The cache's folder, created if necessary; [org.fedlens.sdk.Bundle] can read parts from it.
 * @param maxBytes Size above which [trim] deletes the least recently used files.
 * @param disk Dispatcher for reading files.
 */
internal class Cache(
    val folder: File,
    val maxBytes: Long,
    private val disk: CoroutineDispatcher = Dispatchers.IO,
) {
    private val parts = File(folder, "parts")
    private val incoming = File(folder, "incoming")
    private val turns = Turns()
    private val pinned = HashMap<String, Int>() // also the lock of these two
    private val verified = HashSet<String>()

    init {
        makeFolder(parts, "cache folder")
        makeFolder(incoming, "cache folder")
    }

    /** The file of a part or blob, which need not exist. */
    fun file(digest: ByteArray): File = File(parts, digest.toHex())

    /** True if the part or blob is here and intact; counts as a use. */
    suspend fun has(digest: ByteArray): Boolean = withContext(disk) { isWhole(digest) }

    /**
     * Obtain a part or blob, fetching it if necessary.
     *
     * @param fetch Called once even for concurrent requests for the same blob; the others wait.
     * @param isExact True if [Wanted.size] is the exact size; otherwise it is the maximum.
     * @return True if it was fetched.
     * @throws TransportException The wrong bytes came twice, the digest is malformed, or [fetch] failed.
     * @throws StateException The disk is full, or the folder cannot be used.
     */
    suspend fun obtain(
        wanted: Wanted,
        isExact: Boolean = true,
        fetch: Fetch,
    ): Boolean {
        if (wanted.digest.size != KeyedHash.DIGEST_BYTES) {
            throw TransportException(
                Reason.BAD_ANSWER,
                "a blob is named by ${wanted.digest.size} bytes, a digest has ${KeyedHash.DIGEST_BYTES}",
            )
        }
        if (has(wanted.digest)) return false
        return turns.take(wanted.digest.toHex()) {
            try {
                !has(wanted.digest) && download(wanted, isExact, fetch)
            } catch (error: IOException) {
                throw unusable(error)
            }
        }
    }

    /** Pin a part or blob, which need not be here, until [pins] is closed. */
    fun pin(
        digest: ByteArray,
        pins: Pins,
    ) {
        val name = digest.toHex()
        synchronized(pinned) { pinned[name] = (pinned[name] ?: 0) + 1 }
        pins.add { unpin(name) }
    }

    /** Pin a part or blob until [pins] is closed; true if it is here. */
    suspend fun holdPresent(
        digest: ByteArray,
        pins: Pins,
    ): Boolean {
        pin(digest, pins)
        // Pinned first, so that it is not deleted after the check.
        return has(digest)
    }

    /**
     * Obtain parts or blobs and pin them until [pins] is closed; see [obtain].
     *
     * @return Those that were fetched.
     */
    suspend fun hold(
        wanted: Iterable<Wanted>,
        pins: Pins,
        fetch: Fetch,
    ): List<Wanted> =
        wanted.filter {
            pin(it.digest, pins)
            obtain(it, fetch = fetch)
        }

    /** Delete the least recently used files that are not pinned, until the rest is within the limit. */
    suspend fun trim() {
        withContext(disk) {
            val files = listOf(parts, incoming).flatMap { it.listFiles()?.toList().orEmpty() }
            var excess = files.sumOf { it.length() } - maxBytes
            for ((file, size) in files.sortedBy { it.lastModified() }.map { it to it.length() }) {
                if (excess <= 0) break
                if (deleteUnused(file)) excess -= size
            }
        }
    }

    private suspend fun download(
        wanted: Wanted,
        isExact: Boolean,
        fetch: Fetch,
    ): Boolean {
        val name = wanted.digest.toHex()
        val file = File(incoming, name)
        try {
            // An earlier process may have fetched all of it; then the server has nothing left to send.
            if (file.length() >= maxOf(1, wanted.size) && faultOf(file, wanted, isExact) == null) return false
            if (wanted.shortcut?.write(file) == true && faultOf(file, wanted, isExact) == null) return false
            for (isLast in listOf(false, true)) {
                fetch.fetch(wanted.digest, file, wanted.size)
                // Bytes from before a crash may be damaged: fetch again from the first byte.
                val fault = faultOf(file, wanted, isExact) ?: return true
                if (isLast) {
                    val message = "blob $name: $fault came, ${wanted.size} bytes were announced"
                    throw TransportException(Reason.BAD_ANSWER, message)
                }
            }
        } finally {
            withContext(NonCancellable + disk) {
                if (file.length() == 0L) file.delete()
            }
        }
        error("unreachable")
    }

    /** Move the file into the cache if it is the wanted blob; otherwise empty it and describe what it held. */
    private suspend fun faultOf(
        file: File,
        wanted: Wanted,
        isExact: Boolean,
    ): String? =
        withContext(disk) {
            val length = file.length()
            val found = sha256(file)
            if (found.contentEquals(wanted.digest) && (length == wanted.size || !isExact)) {
                file.setLastModified(System.currentTimeMillis())
                moveInto(file, file(wanted.digest))
                synchronized(pinned) { verified += found.toHex() }
                return@withContext null
            }
            RandomAccessFile(file, "rw").use { it.setLength(0) }
            "$length bytes with digest ${found.toHex()}"
        }

    private fun isWhole(digest: ByteArray): Boolean {
        val name = digest.toHex()
        val file = file(digest)
        try {
            if (synchronized(pinned) { name !in verified }) {
                if (!sha256(file).contentEquals(digest)) {
                    file.delete()
                    return false
                }
                synchronized(pinned) { verified += name }
            }
        } catch (_: FileNotFoundException) {
            return false
        } catch (error: IOException) {
            throw unusable(error)
        }
        // Another call may have deleted the file; then setLastModified() returns false.
        return file.setLastModified(System.currentTimeMillis()).also { there ->
            if (!there) synchronized(pinned) { verified -= name }
        }
    }

    private fun unpin(name: String) {
        synchronized(pinned) {
            val holders = pinned.getValue(name) - 1
            if (holders > 0) pinned[name] = holders else pinned -= name
        }
    }

    private fun deleteUnused(file: File): Boolean =
        synchronized(pinned) {
            val isUsed = file.name in pinned || (file.parentFile == incoming && turns.isTaken(file.name))
            if (!isUsed && file.parentFile == parts) verified -= file.name
            !isUsed && (file.delete() || !file.exists())
        }

    private fun unusable(error: IOException) =
        StateException(
            StateException.Reason.NOT_WRITABLE,
            "cache folder $folder cannot be used: ${error.whyNot()}",
            error,
        )
}

/** A holder of cache entries, which [Cache.trim] spares until it is closed. */
internal class Pins : Closeable {
    private val releases = ArrayList<() -> Unit>()

    internal fun add(release: () -> Unit) {
        synchronized(releases) { releases += release }
    }

    override fun close() {
        val due = synchronized(releases) { releases.toList().also { releases.clear() } }
        due.forEach { it() }
    }
}

/** A mutex per name, which is dropped when nobody holds it or waits for it. */
private class Turns {
    private class Turn {
        val mutex = Mutex()
        var waiting = 0
    }

    private val turns = HashMap<String, Turn>()

    suspend fun <T> take(
        name: String,
        work: suspend () -> T,
    ): T {
        val turn = synchronized(turns) { turns.getOrPut(name, ::Turn).also { it.waiting++ } }
        try {
            return turn.mutex.withLock { work() }
        } finally {
            synchronized(turns) { if (--turn.waiting == 0) turns -= name }
        }
    }

    fun isTaken(name: String): Boolean = synchronized(turns) { name in turns }
}
