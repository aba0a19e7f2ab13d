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
 * The record of programs that were loaded and run here without ending the process.
 *
 * Runtimes are not built for hostile files: some damaged files make them access invalid memory, and the system then
 * ends the process, which no code can catch. On a desktop, FedLens tries a program in a separate process. An app
 * cannot, so it keeps a mark on the disk: before a program is first loaded, the mark says that its trial has begun; the
 * program runs on zeros and on ones; then the mark says that it was tried. A trial that began and did not end means
 * that the process died in it. That may be chance, for example if the owner closed the app just then. After a second
 * death the program is refused, so that one bad bundle cannot disable an app; a day after the last death it gets
 * another try.
 *
 * @param folder The folder of the marks, one small file per program; created if necessary. Only one process may use it
 *     at a time, and anyone who can write to it can get hostile programs loaded.
 */
internal class Trials(
    private val folder: File,
) {
    /**
     * Load a program and run [trial], unless the program was tried before.
     *
     * @param program Name of the program, for messages.
     * @param key SHA-256 of everything that the outcome depends on: manifest entry, file, and runtime version.
     * @param load Loads the program, which is closed if its trial fails.
     * @throws EngineException The process died twice in this trial, less than a day ago; or a mark cannot be written;
     *     or [load] or [trial] failed.
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
                // The process survived, so this counts as no death; a refused program is tried again next time.
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

        /** One character for each trial that began and did not end. */
        const val BEGUN = '!'
        const val MOST_DEATHS = 2
        val REFUSED_MS = TimeUnit.DAYS.toMillis(1)

        /** Engines of one process may share a folder. */
        val TURN = Any()
    }
}
