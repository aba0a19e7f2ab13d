package org.fedlens.jvm

import org.fedlens.sdk.EngineException
import org.fedlens.sdk.EngineException.Reason
import java.io.File
import java.io.IOException
import java.nio.ByteBuffer
import java.nio.file.Files
import java.nio.file.StandardCopyOption

/** The functions of `programs.cpp`; call [require] before any of them. */
internal object Native {
    private const val FOLDER = "/org/fedlens/jvm/native"

    private val fault: EngineException? by lazy { open() }

    /**
     * Load the library from the class path, once per class loader.
     *
     * @throws EngineException With reason `RUNTIME_MISSING`.
     */
    fun require() {
        fault?.let { throw EngineException(it.reason, it.message.orEmpty(), it) }
    }

    private fun open(): EngineException? {
        val library = Native::class.java.getResourceAsStream("$FOLDER/fedlens-executorch.so")
        if (library == null) {
            val reason = Native::class.java.getResource("$FOLDER/reason.txt")?.readText()?.trim()
            return missing(reason ?: "it is not on the class path; build module jvm-engine with Maven")
        }
        var file: File? = null
        return try {
            // The JVM binds a library file to one class loader, so each loader gets its own copy.
            file = File.createTempFile("fedlens-executorch", ".so")
            library.use { Files.copy(it, file.toPath(), StandardCopyOption.REPLACE_EXISTING) }
            System.load(file.absolutePath)
            start()
            null
        } catch (error: UnsatisfiedLinkError) {
            missing("it does not load; build it again: ${error.message.orEmpty().substringAfter(": ")}", error)
        } catch (error: IOException) {
            missing("it cannot be copied to the folder for temporary files: ${error.message}", error)
        } catch (error: ProgramFault) {
            missing("it does not start: ${error.message}", error)
        } finally {
            file?.delete()
        }
    }

    private fun missing(
        reason: String,
        cause: Throwable? = null,
    ) = EngineException(
        Reason.RUNTIME_MISSING,
        "ExecuTorch's runtime for the JVM is missing: $reason. It needs Linux, g++ and the Python package " +
            "executorch; tell Maven with -Dfedlens.python=... which Python has it",
        cause,
    )

    @JvmStatic
    private external fun start()

    /** The package's version. */
    @JvmStatic
    external fun version(): String

    /**
     * Load a program.
     *
     * @param file The mapped `.pte`; keep it and all other buffers alive until [free].
     * @param numbers For each input, then each output: ExecuTorch's type number, the number of dimensions, and the
     *     dimensions.
     * @param arguments A direct buffer for each input.
     * @param results A direct buffer for each output, which receives the output after a run.
     * @return A handle for [run] and [free].
     */
    @JvmStatic
    external fun load(
        file: ByteBuffer,
        numbers: IntArray,
        arguments: Array<ByteBuffer>,
        results: Array<ByteBuffer>,
    ): Long

    @JvmStatic
    external fun run(handle: Long)

    @JvmStatic
    external fun free(handle: Long)
}

/** A failure of the runtime, thrown by native code. */
internal class ProgramFault(
    message: String,
) : Exception(message)
