package org.fedlens.jvm

import org.fedlens.sdk.EngineException
import org.fedlens.sdk.EngineException.Reason
import org.fedlens.sdk.blob.TensorSpec
import org.fedlens.sdk.engine.LoadedProgram
import org.fedlens.sdk.engine.ProgramForm
import org.fedlens.sdk.engine.ProgramRuntime
import java.io.File
import java.io.FileInputStream
import java.io.IOException
import java.nio.ByteBuffer
import java.nio.ByteOrder
import java.nio.channels.FileChannel

/**
 * The ExecuTorch runtime of the Python package `executorch`, on a desktop JVM. It uses the same kernels on one thread
 * as FedLens's Python client, so results are bit-identical. For tests, and for services on the JVM.
 *
 * The build compiles the library on the target machine, which must have that package; the library contains the
 * package's path.
 */
public class JniRuntime : ProgramRuntime {
    override val version: String by lazy {
        Native.require()
        "executorch ${Native.version()}"
    }

    override fun load(
        form: ProgramForm,
        file: File,
    ): LoadedProgram {
        Native.require()
        val bytes =
            try {
                FileInputStream(file).use { it.channel.map(FileChannel.MapMode.READ_ONLY, 0, it.channel.size()) }
            } catch (error: IOException) {
                throw EngineException(Reason.BUNDLE_UNUSABLE, "program '${form.name}' cannot be read", error)
            }
        return NativeProgram(form, bytes, Native.version())
    }
}

private class NativeProgram(
    private val form: ProgramForm,
    private val file: ByteBuffer,
    private val runtime: String,
) : LoadedProgram {
    override val arguments = form.inputs.map(::memory)
    override val results =
        form.outputs.zip(form.replaced) { output, target -> if (target < 0) memory(output) else arguments[target] }

    // Zero when closed.
    private var handle =
        guarded("cannot be used") {
            Native.load(file, numbers(form), arguments.toTypedArray(), results.toTypedArray())
        }

    @Synchronized
    override fun run() {
        check(handle != 0L) { "program '${form.name}' is closed" }
        guarded("cannot be run") { Native.run(handle) }
    }

    @Synchronized
    override fun close() {
        val open = handle
        handle = 0
        if (open != 0L) Native.free(open)
    }

    private fun <T> guarded(
        what: String,
        action: () -> T,
    ): T =
        try {
            action()
        } catch (error: ProgramFault) {
            val missing = MISSING_OPERATOR.find(error.message.orEmpty())
            val reason =
                if (missing == null) {
                    error.message
                } else {
                    "ExecuTorch $runtime has no operator ${missing.groupValues[1]}; install the version that the " +
                        "bundle was exported with, or export it with this one"
                }
            throw EngineException(Reason.BUNDLE_UNUSABLE, "program '${form.name}' $what: $reason", error)
        }

    private companion object {
        // A cache line; XNNPACK may read a little beyond a tensor's end.
        const val ALIGNMENT = 64
        const val FLOAT32 = 6
        const val INT64 = 4
        val MISSING_OPERATOR = Regex("""Missing operator: \[\d+] ([^\s;]+)""")

        fun memory(spec: TensorSpec): ByteBuffer {
            val bytes = Math.toIntExact(spec.count * (if (spec.isInteger) 8 else 4))
            val room = ByteBuffer.allocateDirect(Math.addExact(bytes, 3 * ALIGNMENT)).alignedSlice(ALIGNMENT)
            room.limit(bytes)
            return room.slice().order(ByteOrder.nativeOrder())
        }

        fun numbers(form: ProgramForm): IntArray =
            (form.inputs + form.outputs)
                .flatMap { spec ->
                    val type = if (spec.isInteger) INT64 else FLOAT32
                    listOf(type, spec.shape.size) + spec.shape.map { Math.toIntExact(it) }
                }.toIntArray()
    }
}
