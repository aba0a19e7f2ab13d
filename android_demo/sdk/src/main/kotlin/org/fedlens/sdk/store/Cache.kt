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

/** Appends what is missing of a blob to a file, as [org.fedlens.sdk.net.Transport.fetch]. */
internal fun interface Fetch {
    suspend fun fetch(
        sha256: ByteArray,
        into: File,
        maxBytes: Long,
    )
}

/**
 * Writes what should be the wanted blob into a file, from what is here and little more; or says that it cannot, and
 * leaves the file as it was or empty.
 */
internal fun interface Shortcut {
    suspend fun write(into: File): Boolean
}

/**
 * A part or blob that is needed.
 *
 * @property digest Its name, 32 bytes.
 * @property size Bytes of it.
 * @property shortcut Tried before it is fetched; what that writes counts if it has the digest.
 */
internal class Wanted(
    val digest: ByteArray,
    val size: Long,
    val shortcut: Shortcut? = null,
)

/**
 * Parts and blobs by digest.
 *
 *     parts/<sha256>        complete, verified when it came and again when a process first meets it
 *     incoming/<sha256>     a beginning, which the next attempt goes on from
 *
 * Everything here can be fetched again: nothing is synced, damage is found by the digest. Used by one client at a time,
 * which may call it from several coroutines.
 *
 * @param folder Made if need be; a bundle's parts are where [org.fedlens.sdk.Bundle] looks for them in it.
 * @param maxBytes Beyond this [trim] deletes the least recently used files.
 * @param disk Where files are read.
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

    /** Where a part or blob is, if it is there. */
    fun file(digest: ByteArray): File = File(parts, digest.toHex())

    /** Whether it is there, undamaged; counts as a use. */
    suspend fun has(digest: ByteArray): Boolean = withContext(disk) { isWhole(digest) }

    /**
     * Has a part or blob in the cache.
     *
     * @param fetch Called once, however many ask for the same blob at a time; the others wait.
     * @param isExact Whether its length is known; otherwise [Wanted.size] is the most that it may have.
     * @return Whether it had to be fetched.
     * @throws TransportException Twice something else came, the name is none, or what [fetch] throws.
     * @throws StateException There is no room, or the folder cannot be used.
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

    /** Keeps a part or blob in the cache until [pins] are closed, if it is there now. */
    suspend fun holdPresent(
        digest: ByteArray,
        pins: Pins,
    ): Boolean {
        pin(digest, pins)
        // Pinned first: between the two it could be deleted.
        return has(digest)
    }

    /**
     * Has parts or blobs in the cache until [pins] are closed; otherwise as [obtain].
     *
     * @return Those that had to be fetched.
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

    /** Deletes the least recently used files that nobody uses, until the rest is within the limit. */
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
            // All of it may have come before the process ended; the server has nothing to send then.
            if (file.length() >= maxOf(1, wanted.size) && faultOf(file, wanted, isExact) == null) return false
            if (wanted.shortcut?.write(file) == true && faultOf(file, wanted, isExact) == null) return false
            for (isLast in listOf(false, true)) {
                fetch.fetch(wanted.digest, file, wanted.size)
                // What a crash left of an earlier attempt may be damaged: once more, from the first byte.
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

    /** Takes the file in if it is what is wanted; otherwise empties it and says what was in it. */
    private suspend fun faultOf(
        file: File,
        wanted: Wanted,
        isExact: Boolean,
    ): String? =
        withContext(disk) {
            val length = file.length()
            val found = file.inputStream().use(::sha256)
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
                if (!file.inputStream().use(::sha256).contentEquals(digest)) {
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
        // Another call may have deleted it; a use of what is not there says so.
        return file.setLastModified(System.currentTimeMillis()).also { there ->
            if (!there) synchronized(pinned) { verified -= name }
        }
    }

    private fun pin(
        digest: ByteArray,
        pins: Pins,
    ) {
        val name = digest.toHex()
        synchronized(pinned) { pinned[name] = (pinned[name] ?: 0) + 1 }
        pins.add { unpin(name) }
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

/** What keeps files of a [Cache] from being deleted, until it is closed. */
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

/** One at a time for each name; what is kept of a name goes with the last one who waits. */
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
