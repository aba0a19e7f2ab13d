package org.fedlens.sdk.store

import org.fedlens.sdk.StateException
import org.fedlens.sdk.StateException.Reason
import java.io.Closeable
import java.io.File
import java.io.IOException
import java.io.RandomAccessFile

/** Keeps a folder to one user at a time; the system lets go of it when the process ends, however that happens. */
internal class FolderLock private constructor(
    private val path: String,
    private val file: RandomAccessFile,
) : Closeable {
    override fun close() {
        synchronized(taken) {
            if (taken.remove(path)) file.close()
        }
    }

    companion object {
        // The system tells processes apart, not the users within one; and closing any descriptor of a file lets go of
        // all locks that its process has on it, so that a second one must not even be opened.
        private val taken = HashSet<String>()

        /**
         * Takes the lock of [folder], which is there.
         *
         * @param what For people, such as `state folder`.
         * @throws StateException Somebody has it, or the folder cannot be written.
         */
        fun take(
            folder: File,
            what: String,
        ): FolderLock =
            writing("$what $folder") {
                val path = folder.canonicalPath
                synchronized(taken) {
                    if (path in taken) throw inUse(what, folder, "by another part of this process")
                    val file = RandomAccessFile(File(folder, "lock"), "rw")
                    try {
                        if (file.channel.tryLock() == null) throw inUse(what, folder, "by another process")
                    } catch (error: IOException) {
                        file.close()
                        throw error
                    } catch (error: StateException) {
                        file.close()
                        throw error
                    }
                    taken += path
                    FolderLock(path, file)
                }
            }

        private fun inUse(
            what: String,
            folder: File,
            by: String,
        ) = StateException(Reason.IN_USE, "$what $folder is in use $by; close that, or use a folder of its own")
    }
}
