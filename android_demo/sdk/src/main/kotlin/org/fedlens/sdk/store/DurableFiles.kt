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
 * Writes a file of mode 0600 that is on the disk, with its name, when this returns; until then it has another name, so
 * that nobody meets half of it.
 *
 * @param fresh What it is called until then, in the same folder; a file of that name is replaced.
 * @param name Its name, by what was written.
 * @throws IOException It cannot be written; there is no such file then, nor one named [fresh].
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

/** Gives a file another name in the same file system; a file that had it is replaced. */
@Throws(IOException::class)
internal fun moveInto(
    from: File,
    to: File,
) {
    Files.move(from.toPath(), to.toPath(), StandardCopyOption.ATOMIC_MOVE, StandardCopyOption.REPLACE_EXISTING)
}

/** Has the names of a folder's files on the disk. */
@Throws(IOException::class)
internal fun syncFolder(folder: File) {
    FileChannel.open(folder.toPath(), StandardOpenOption.READ).use { it.force(true) }
}

/**
 * Makes a folder, if need be, that only its owner may enter.
 *
 * @throws StateException It cannot be made.
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

/** Lets [work] fail with a [StateException] where the disk does. */
internal inline fun <T> writing(
    what: String,
    work: () -> T,
): T =
    try {
        work()
    } catch (error: IOException) {
        throw StateException(StateException.Reason.NOT_WRITABLE, "$what cannot be written: ${error.whyNot()}", error)
    }

/** For people: a [FileSystemException] alone has no more than the name for a message. */
internal fun IOException.whyNot(): String = (this as? FileSystemException)?.reason ?: message ?: javaClass.simpleName

private const val BUFFER_BYTES = 1 shl 16
