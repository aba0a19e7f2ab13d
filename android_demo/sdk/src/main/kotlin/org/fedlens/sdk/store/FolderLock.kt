package org.fedlens.sdk.store

import org.fedlens.sdk.StateException
import org.fedlens.sdk.StateException.Reason
import java.io.Closeable
import java.io.File
import java.io.IOException
import java.io.RandomAccessFile

/** An exclusive lock on a folder, which the system releases when the process ends, however that happens. */
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
        // System locks are per process. Closing any descriptor of the file releases all of the process's locks on it,
        // so the file must not even be opened twice.
        private val taken = HashSet<String>()

        /**
         * Lock [folder], which must exist.
         *
         * @param what Name of the folder for messages, such as `state folder`.
         * @throws StateException The folder is locked already, or cannot be written.
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
