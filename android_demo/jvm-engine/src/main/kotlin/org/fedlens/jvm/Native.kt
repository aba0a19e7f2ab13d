package org.fedlens.jvm

import org.fedlens.sdk.EngineException
import org.fedlens.sdk.EngineException.Reason
import java.io.File
import java.io.IOException
import java.nio.ByteBuffer
import java.nio.file.Files
import java.nio.file.StandardCopyOption

/** The functions of `programs.cpp`; nothing of it may be called before [require] has returned. */
internal object Native {
    private const val FOLDER = "/org/fedlens/jvm/native"

    private val fault: EngineException? by lazy { open() }

    /**
     * Loads the library, which the build has put on the class path, once for each class loader.
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
            // A file belongs to the first class loader that loads it, so each one has its own.
            file = File.createTempFile("fedlens-executorch", ".so")
            library.use { Files.copy(it, file.toPath(), StandardCopyOption.REPLACE_EXISTING) }
            System.load(file.absolutePath)
            start()
            null
        } catch (error: UnsatisfiedLinkError) {
            missing("it does not load; build it anew: ${error.message.orEmpty().substringAfter(": ")}", error)
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
            "executorch, of the Python that Maven is told of by -Dfedlens.python=...",
        cause,
    )

    @JvmStatic
    private external fun start()

    /** The package's version. */
    @JvmStatic
    external fun version(): String

    /**
     * Loads a program.
     *
     * @param file The `.pte`, mapped; like all buffers it must be kept until [free].
     * @param numbers For each input, then each output: ExecuTorch's number of its type, how many dimensions, each one.
     * @param arguments A direct buffer for each input.
     * @param results A direct buffer for each output, to which it is copied after a run.
     * @return What [run] and [free] take.
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

/** The runtime refuses what it was asked for; thrown by native code. */
internal class ProgramFault(
    message: String,
) : Exception(message)
