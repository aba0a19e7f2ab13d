package org.fedlens.sdk.engine

import org.fedlens.sdk.EngineException
import org.fedlens.sdk.EngineException.Reason
import org.fedlens.sdk.toHex
import java.io.Closeable
import java.io.File
import java.io.FileOutputStream
import java.io.IOException
import java.util.concurrent.TimeUnit

/**
 * Notes which programs have been loaded and run here without ending the process.
 *
 * A runtime is not made for hostile files: some damaged ones make it read or write where it must not, and then the
 * system ends the process, which no code can catch. On a desktop FedLens tries a program in a process of its own. An
 * app has none to spare, so it keeps a mark instead: before a program is loaded for the first time, a file says that it
 * is being tried, and is on the disk; the program runs on zeros and on ones; then the file says that it was tried. Who
 * finds at start that a trial has begun and not ended knows that the process has died in it. That may have been chance,
 * such as an owner who ended the app just then. The second time the program is refused, so that one bad bundle cannot
 * keep an app from working; a day after the last death it gets another try, for chance may strike twice.
 *
 * @param folder Where the marks are, one small file a program; made where missing. It must belong to one process at a
 *     time, and whoever can write to it can have hostile programs loaded.
 */
internal class Trials(
    private val folder: File,
) {
    /**
     * Runs [trial] unless that has been done with this program before.
     *
     * @param program Its name, for messages.
     * @param key SHA-256 of all that the outcome depends on: what the manifest says, the file, the runtime's version.
     * @param load Gives the program, which is closed here if it cannot be used.
     * @throws EngineException The process has died in this trial twice, and that is less than a day ago; a mark cannot
     *     be written; or [load] or [trial] throws it.
     */
    fun <T : Closeable> run(
        program: String,
        key: ByteArray,
        load: () -> T,
        trial: (T) -> Unit,
    ): T =
        synchronized(TURN) {
            val mark = File(folder, key.toHex())
            val found = read(mark)
            if (found == TRIED) return load()
            val deaths = found.count { it == BEGUN }
            if (deaths >= MOST_DEATHS && System.currentTimeMillis() - mark.lastModified() in 0 until REFUSED_MS) {
                throw EngineException(
                    Reason.BUNDLE_UNUSABLE,
                    "program '$program' cannot be used: the process ended $deaths times while it was tried; the file " +
                        "is damaged or hostile, and gets another try after a day",
                )
            }
            var loaded: T? = null
            try {
                write(mark, BEGUN.toString().repeat(minOf(deaths + 1, MOST_DEATHS)), program)
                return load().also {
                    loaded = it
                    trial(it)
                    write(mark, TRIED, program)
                }
            } catch (error: Throwable) {
                // It was no death, whatever it was; a program that is refused is tried anew the next time.
                mark.delete()
                loaded?.close()
                throw error
            }
        }

    private fun read(mark: File): String =
        try {
            if (mark.length() > MOST_DEATHS + TRIED.length) "" else mark.readText()
        } catch (_: IOException) {
            ""
        }

    private fun write(
        mark: File,
        text: String,
        program: String,
    ) = try {
        folder.mkdirs()
        FileOutputStream(mark).use {
            it.write(text.toByteArray())
            it.fd.sync()
        }
    } catch (error: IOException) {
        throw EngineException(
            Reason.BUNDLE_UNUSABLE,
            "program '$program' cannot be tried: what protects the app from it cannot be written; free some space",
            error,
        )
    }

    private companion object {
        const val TRIED = "tried"

        /** Once for each trial that has begun and not ended. */
        const val BEGUN = '!'
        const val MOST_DEATHS = 2
        val REFUSED_MS = TimeUnit.DAYS.toMillis(1)

        /** Engines of one process may share a folder. */
        val TURN = Any()
    }
}
