package org.fedlens.sdk.store

import org.fedlens.sdk.StateException
import java.io.BufferedOutputStream
import java.io.File
import java.io.IOException
import java.io.OutputStream
import java.nio.channels.Channels
import java.nio.channels.FileChannel
import java.nio.file.FileSystemException
import java.nio.file.Files
import java.nio.file.StandardCopyOption
import java.nio.file.StandardOpenOption
import java.nio.file.attribute.PosixFilePermissions

private val OWNER_ALONE = PosixFilePermissions.asFileAttribute(PosixFilePermissions.fromString("rw-------"))
private val FRESH = setOf(StandardOpenOption.CREATE_NEW, StandardOpenOption.WRITE)

/**
 * Write a file with mode 0600 durably: under a temporary name, so that nobody sees half of it, and synced with its
 * final name.
 *
 * @param fresh The temporary file, in the same folder; an existing one is replaced.
 * @param name The final file, given the result of [write].
 * @throws IOException It cannot be written; then neither file exists.
 */
internal fun <T> writeDurably(
    fresh: File,
    name: (T) -> File,
    write: (OutputStream) -> T,
): T {
    fresh.delete()
    try {
        val written =
            FileChannel.open(fresh.toPath(), FRESH, OWNER_ALONE).use { channel ->
                val stream = BufferedOutputStream(Channels.newOutputStream(channel), BUFFER_BYTES)
                write(stream).also {
                    stream.flush()
                    channel.force(true)
                }
            }
        moveInto(fresh, name(written))
        syncFolder(checkNotNull(fresh.parentFile))
        return written
    } finally {
        fresh.delete()
    }
}

/** Rename a file within its file system, replacing an existing one. */
@Throws(IOException::class)
internal fun moveInto(
    from: File,
    to: File,
) {
    Files.move(from.toPath(), to.toPath(), StandardCopyOption.ATOMIC_MOVE, StandardCopyOption.REPLACE_EXISTING)
}

/** Sync the names of a folder's files to the disk. */
@Throws(IOException::class)
internal fun syncFolder(folder: File) {
    FileChannel.open(folder.toPath(), StandardOpenOption.READ).use { it.force(true) }
}

/**
 * Create a folder that only its owner may enter, if it does not exist.
 *
 * @throws StateException The folder cannot be created.
 */
internal fun makeFolder(
    folder: File,
    what: String,
) {
    if (folder.isDirectory) return
    if (!folder.mkdirs() && !folder.isDirectory) {
        val found = if (folder.exists()) "a file of that name is in the way" else "it cannot be made"
        throw StateException(StateException.Reason.NOT_WRITABLE, "$what $folder cannot be used: $found")
    }
    folder.setReadable(false, false)
    folder.setReadable(true, true)
    folder.setExecutable(false, false)
    folder.setExecutable(true, true)
}

/** Run [work], turning an [IOException] into a [StateException]. */
internal inline fun <T> writing(
    what: String,
    work: () -> T,
): T =
    try {
        work()
    } catch (error: IOException) {
        throw StateException(StateException.Reason.NOT_WRITABLE, "$what cannot be written: ${error.whyNot()}", error)
    }

/** The reason for people: the message of a [FileSystemException] may be no more than the file's name. */
internal fun IOException.whyNot(): String = (this as? FileSystemException)?.reason ?: message ?: javaClass.simpleName

private const val BUFFER_BYTES = 1 shl 16
