package org.fedlens.sdk.engine

import org.fedlens.sdk.EngineException
import org.fedlens.sdk.EngineException.Reason
import org.fedlens.sdk.toHex
import java.io.Closeable
import java.io.File
import java.io.FileOutputStream
import java.io.IOException

/**
 * The record of programs that were loaded and run here without ending the process.
 *
 * Runtimes are not built for hostile files: some damaged files make them access invalid memory, and the system then
 * ends the process, which no code can catch. Where programs run in the app's process, it keeps a mark on the disk:
 * before a program is first loaded, the mark says that its trial has begun; the program runs on zeros and on ones; then
 * the mark says that it was tried. A trial that began and did not end means that the process died in it. That may be
 * chance, for example if the owner closed the app just then; so it counts as one crash of the bundle, as in [CrashLog].
 *
 * @param folder The folder of the marks, one small file per program; created if necessary. Only one process may use it
 *     at a time, and anyone who can write to it can get hostile programs loaded.
 * @param onDeath Called once for each death.
 */
internal class Trials(
    private val folder: File,
    private val onDeath: () -> Unit,
) {
    /**
     * Load a program and run [trial], unless the program was tried before.
     *
     * @param program Name of the program, for messages.
     * @param key SHA-256 of everything that the outcome depends on: manifest entry, file, and runtime version.
     * @param check Throws if the program must not run now; called after an earlier death was counted.
     * @param load Loads the program, which is closed if its trial fails.
     * @throws EngineException A mark cannot be written; or [check], [load] or [trial] failed.
     */
    fun <T : Closeable> run(
        program: String,
        key: ByteArray,
        check: () -> Unit,
        load: () -> T,
        trial: (T) -> Unit,
    ): T =
        synchronized(TURN) {
            val mark = File(folder, key.toHex())
            val found = read(mark)
            if (found == BEGUN) {
                // In this order: a death in between is counted twice, not never.
                onDeath()
                mark.delete()
            }
            check()
            if (found == TRIED) return load()
            var loaded: T? = null
            try {
                write(mark, BEGUN, program)
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
            if (mark.length() > TRIED.length) "" else mark.readText()
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

        const val BEGUN = "begun"

        /** Engines of one process may share a folder. */
        val TURN = Any()
    }
}
