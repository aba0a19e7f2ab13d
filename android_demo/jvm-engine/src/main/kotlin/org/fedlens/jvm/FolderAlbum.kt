package org.fedlens.jvm

import org.fedlens.sdk.AlbumEntry
import org.fedlens.sdk.KeyedHash
import org.fedlens.sdk.StateException
import org.fedlens.sdk.album.ExampleSource
import org.fedlens.sdk.album.Examples
import org.fedlens.sdk.album.Photo
import org.fedlens.sdk.toHex
import java.io.File
import java.io.IOException
import java.security.MessageDigest

/**
 * An album in a folder with one sub-folder per class, read again in every round. Test photos are selected by content.
 *
 * @param root The folder; its photos may change at any time.
 * @throws StateException The folder does not exist.
 */
public class FolderAlbum(
    private val root: File,
) : ExampleSource {
    private var known = emptyMap<File, Known>()

    init {
        if (!root.isDirectory) {
            throw unusable("$root is not a folder; give one that has a sub-folder of photos for each class")
        }
    }

    @Synchronized
    override fun examples(): Examples {
        val reading = Reading()
        for (entry in listing(root) ?: throw unusable("the photo folder $root cannot be read")) {
            if (entry.isDirectory) reading.takeClass(entry) else reading.skip(OUTSIDE, entry)
        }
        val settled = System.currentTimeMillis() - SETTLED_MS
        known = reading.seen.filterValues { it.modifiedMs < settled }
        return reading.snapshot()
    }

    private inner class Reading {
        val seen = LinkedHashMap<File, Known>()
        private val skipped = LinkedHashMap<String, MutableList<String>>()

        fun takeClass(folder: File) {
            val entries = listing(folder) ?: return skip(UNREADABLE, folder)
            for (entry in entries) {
                when {
                    entry.isDirectory -> skip("folders inside a class folder", entry)
                    entry.extension.lowercase() in SUFFIXES -> takePhoto(entry)
                    entry.extension.lowercase() in HEIC_SUFFIXES ->
                        skip("HEIC photos, which cannot be read here (export them as JPEG)", entry)
                    else -> skip("no photos by their suffix", entry)
                }
            }
        }

        fun skip(
            reason: String,
            file: File,
        ) {
            skipped.getOrPut(reason, ::ArrayList) += file.relativeTo(root).invariantSeparatorsPath
        }

        fun snapshot(): Examples {
            val copies = HashMap<String, Int>()
            // Classes and names are sorted, so copies of a photo are numbered in a fixed order.
            val photos =
                seen.map { (file, found) ->
                    val copy = copies.merge(found.sha256.toHex(), 1, Int::plus)!! - 1
                    Photo(
                        AlbumEntry(found.sha256, copy),
                        file.parentFile.name,
                        file,
                        KeyedHash.isTestPhoto(found.sha256),
                    )
                }
            return Examples(photos.sortedBy { it.entry }, skipped.mapValues { (_, names) -> names.sorted() })
        }

        private fun takePhoto(file: File) {
            try {
                val (size, modifiedMs) = file.length() to file.lastModified()
                val before = known[file]?.takeIf { it.size == size && it.modifiedMs == modifiedMs }
                seen[file] = before ?: Known(size, modifiedMs, digest(file))
            } catch (_: IOException) {
                skip(UNREADABLE, file)
            }
        }
    }

    private class Known(
        val size: Long,
        val modifiedMs: Long,
        val sha256: ByteArray,
    )

    private companion object {
        val SUFFIXES = setOf("jpg", "jpeg", "png", "webp", "bmp")
        val HEIC_SUFFIXES = setOf("heic", "heif")
        const val UNREADABLE = "files that cannot be read"
        const val OUTSIDE = "files outside the class folders"
        const val BLOCK_BYTES = 1 shl 16

        // A file that changes again within the resolution of the file system's clock may keep its size and time.
        const val SETTLED_MS = 2_000L

        /** The entries of a folder except hidden ones, sorted by the UTF-8 bytes of their names. */
        fun listing(folder: File): List<File>? =
            folder
                .listFiles { file -> !file.name.startsWith(".") }
                ?.sortedWith(compareBy(Comparator(KeyedHash::compareUnsigned)) { it.name.toByteArray() })

        fun digest(file: File): ByteArray {
            val digest = MessageDigest.getInstance("SHA-256")
            file.forEachBlock(BLOCK_BYTES) { block, count -> digest.update(block, 0, count) }
            return digest.digest()
        }

        fun unusable(message: String) = StateException(StateException.Reason.DAMAGED, message)
    }
}
