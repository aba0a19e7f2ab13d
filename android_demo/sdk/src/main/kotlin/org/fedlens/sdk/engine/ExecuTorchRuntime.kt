package org.fedlens.sdk.engine

import org.fedlens.sdk.EngineException
import org.fedlens.sdk.EngineException.Reason
import org.pytorch.executorch.EValue
import org.pytorch.executorch.Module
import org.pytorch.executorch.Tensor
import java.io.File
import java.nio.ByteBuffer

/**
 * The ExecuTorch runtime of the `executorch-android` AAR, which an app adds to its own dependencies.
 *
 * ExecuTorch has one pool of threads for the whole process, and each load of a program sets its size. In a process of
 * its own FedLens uses one thread. In the app's process it leaves the size to ExecuTorch, as the app's own loads do,
 * unless the app has [decided][decideThreads] otherwise.
 *
 * FedLens's own tests cannot run this class, because the AAR has no native library for their machines; they run every
 * program with `jvm-engine`. This class is only compiled against ExecuTorch's classes.
 *
 * @param build A text that changes whenever the app may include another ExecuTorch, such as its version code and the
 *     time of its last update. Programs are then tried again.
 */
public class ExecuTorchRuntime internal constructor(
    build: String,
    private val open: (path: String, threads: Int) -> Module = { path, threads ->
        Module.load(path, Module.LOAD_MODE_MMAP, threads)
    },
    private val threads: () -> Int = { decided ?: BY_EXECUTORCH },
) : ProgramRuntime {
    public constructor(build: String) : this(build, threads = { decided ?: BY_EXECUTORCH })

    override val version: String = "executorch in app $build"

    override fun load(
        form: ProgramForm,
        file: File,
    ): LoadedProgram {
        val memory =
            try {
                ByteBuffer.allocateDirect(ProgramMemory.bytes(form))
            } catch (error: OutOfMemoryError) {
                unusable("program '${form.name}' takes more memory than there is", error)
            }
        return load(form, file, ProgramMemory(form, memory))
    }

    /** [load] with memory that the caller has. */
    internal fun load(
        form: ProgramForm,
        file: File,
        memory: ProgramMemory,
    ): LoadedProgram {
        val module =
            try {
                open(file.path, threads())
            } catch (error: LinkageError) {
                throw EngineException(
                    Reason.RUNTIME_MISSING,
                    "ExecuTorch's native library cannot be loaded: the app must depend on " +
                        "org.pytorch:executorch-android and hold its library for this device's processor",
                    error,
                )
            } catch (error: RuntimeException) {
                unusable("program '${form.name}' cannot be used: ExecuTorch says: ${saidBy(error)}", error)
            }
        return ModuleProgram(form, module, memory)
    }

    public companion object {
        private const val BY_EXECUTORCH = 0

        @Volatile private var decided: Int? = null

        /**
         * Set the number of threads of ExecuTorch's pool in this process, for all models in it, the app's own included.
         * Decide once, before the first model is loaded, and load the app's own models with the same number. With one
         * thread, results are those of FedLens's other clients to the last bit.
         *
         * @throws IllegalStateException Another number was decided before.
         */
        @JvmStatic
        public fun decideThreads(count: Int) {
            require(count > 0) { "count: found $count, must be 1 or more" }
            synchronized(this) {
                check(decided == null || decided == count) { "found $count threads, but $decided were decided before" }
                decided = count
            }
        }
    }
}

private class ModuleProgram(
    private val form: ProgramForm,
    private val module: Module,
    memory: ProgramMemory,
) : LoadedProgram {
    override val arguments = memory.arguments
    override val results = memory.results

    // The runtime reads the arguments in place.
    private val values =
        form.inputs
            .zip(arguments) { input, buffer ->
                val shape = input.shape.toLongArray()
                val isInteger = input.isInteger
                EValue.from(
                    if (isInteger) {
                        Tensor.fromBlob(buffer.asLongBuffer(), shape)
                    } else {
                        Tensor.fromBlob(buffer.asFloatBuffer(), shape)
                    },
                )
            }.toTypedArray()
    private var isOpen = true

    @Synchronized
    override fun run() {
        check(isOpen) { "program '${form.name}' is closed" }
        val found =
            try {
                module.forward(*values)
            } catch (error: RuntimeException) {
                unusable("program '${form.name}' cannot be run: ExecuTorch says: ${saidBy(error)}", error)
            }
        if (found.size != form.outputs.size) {
            unusable("program '${form.name}' gives ${found.size} results, its manifest says ${form.outputs.size}")
        }
        for ((i, spec) in form.outputs.withIndex()) {
            val tensor = if (found[i].isTensor) found[i].toTensor() else null
            if (tensor == null || tensor.shape().toList() != spec.shape) {
                unusable("program '${form.name}' gives another shape than its manifest says ($spec)")
            }
            try {
                // ExecuTorch's classes return the numbers only as an array.
                if (spec.isInteger) {
                    results[i].asLongBuffer().put(tensor.dataAsLongArray)
                } else {
                    results[i].asFloatBuffer().put(tensor.dataAsFloatArray)
                }
            } catch (error: IllegalStateException) {
                unusable("program '${form.name}' gives another type than its manifest says ($spec)", error)
            }
        }
    }

    @Synchronized
    override fun close() {
        if (!isOpen) return
        isOpen = false
        module.destroy()
    }
}

/** The message of a runtime's exception without paths, which could reveal the owner's name to the server. */
private fun saidBy(error: RuntimeException): String =
    error.message.orEmpty().replace(Regex("""(/[^/\s]+){2,}"""), "its file")
