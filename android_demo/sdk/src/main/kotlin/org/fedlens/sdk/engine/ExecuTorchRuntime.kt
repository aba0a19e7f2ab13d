package org.fedlens.sdk.engine

import org.fedlens.proto.v1.Dtype
import org.fedlens.sdk.EngineException
import org.fedlens.sdk.EngineException.Reason
import org.fedlens.sdk.blob.TensorSpec
import org.pytorch.executorch.EValue
import org.pytorch.executorch.Module
import org.pytorch.executorch.Tensor
import java.io.File
import java.nio.ByteBuffer
import java.nio.ByteOrder

/**
 * ExecuTorch as the `executorch-android` AAR brings it, which an app adds to its own dependencies.
 *
 * FedLens's own tests cannot run this class: there is no native library for their machines. They run every program with
 * `jvm-engine` instead; here it is only compiled against ExecuTorch's classes.
 *
 * @param build What changes whenever the app may bring another ExecuTorch, such as its version code and the time of its
 *     last update. Programs that were refused because they ended the process are then tried anew.
 */
public class ExecuTorchRuntime(
    build: String,
) : ProgramRuntime {
    override val version: String = "executorch in app $build"

    override fun load(
        form: ProgramForm,
        file: File,
    ): LoadedProgram {
        val module =
            try {
                Module.load(file.path, Module.LOAD_MODE_MMAP, 1)
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
        return ModuleProgram(form, module)
    }
}

private class ModuleProgram(
    private val form: ProgramForm,
    private val module: Module,
) : LoadedProgram {
    override val arguments = form.inputs.map(::memory)
    override val results =
        form.outputs.zip(form.replaced) { output, target -> if (target < 0) memory(output) else arguments[target] }

    // The runtime reads the arguments where they are.
    private val values =
        form.inputs
            .zip(arguments) { input, buffer ->
                val shape = input.shape.toLongArray()
                val isInteger = input.dtype == Dtype.DTYPE_INT64
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
                // ExecuTorch's classes give the numbers as an array alone.
                if (spec.dtype == Dtype.DTYPE_INT64) {
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

    private fun memory(spec: TensorSpec): ByteBuffer =
        try {
            ByteBuffer.allocateDirect(Math.toIntExact(spec.bytes)).order(ByteOrder.nativeOrder())
        } catch (error: OutOfMemoryError) {
            module.destroy()
            unusable("program '${form.name}' takes more memory than there is: $spec", error)
        }
}

/** What a runtime's exception says, without a path, which would tell the server who the client's owner is. */
private fun saidBy(error: RuntimeException): String =
    error.message.orEmpty().replace(Regex("""(/[^/\s]+){2,}"""), "its file")
