package org.fedlens.sdk.engine

import org.fedlens.proto.v1.Dtype
import org.fedlens.sdk.blob.TensorSpec
import java.io.File
import java.nio.ByteBuffer
import java.nio.ByteOrder

/**
 * A runtime whose programs are functions of a test, with arguments and results as in a real runtime.
 *
 * @param run The function of every program.
 */
class ScriptedRuntime(
    override var version: String = "scripted 1",
    private val run: (ScriptedProgram) -> Unit = {},
) : ProgramRuntime {
    val loaded = mutableListOf<ScriptedProgram>()

    override fun load(
        form: ProgramForm,
        file: File,
    ): LoadedProgram = ScriptedProgram(form, run).also { loaded += it }
}

class ScriptedProgram(
    val form: ProgramForm,
    private val script: (ScriptedProgram) -> Unit,
) : LoadedProgram {
    override val arguments = form.inputs.map(::memory)
    override val results =
        form.outputs.zip(form.replaced) { output, target -> if (target < 0) memory(output) else arguments[target] }
    var runs = 0
    var isClosed = false

    override fun run() {
        check(!isClosed) { "closed" }
        runs++
        script(this)
    }

    override fun close() {
        isClosed = true
    }

    /** The float32 argument of this name. */
    fun argument(name: String) = arguments[form.inputs.indexOfFirst { it.name == name }].asFloatBuffer()

    /** The content of the float32 argument of this name. */
    fun floats(name: String): List<Float> = argument(name).let { buffer -> List(buffer.capacity(), buffer::get) }

    /** The content of the int64 argument of this name. */
    fun longs(name: String): List<Long> {
        val buffer = arguments[form.inputs.indexOfFirst { it.name == name }].asLongBuffer()
        return List(buffer.capacity(), buffer::get)
    }

    /** Makes every element of a float32 output the same. */
    fun give(
        name: String,
        value: Float,
    ) {
        val buffer = results[form.outputs.indexOfFirst { it.name == name }].asFloatBuffer()
        for (i in 0 until buffer.capacity()) buffer.put(i, value)
    }

    private fun memory(spec: TensorSpec): ByteBuffer =
        ByteBuffer
            .allocateDirect(Math.toIntExact(spec.count) * if (spec.dtype == Dtype.DTYPE_INT64) 8 else 4)
            .order(ByteOrder.nativeOrder())
}
