package org.fedlens.sdk.engine

import java.io.File
import java.nio.ByteBuffer

/**
 * A runtime whose programs are functions of a test, with arguments and results as in a real runtime.
 *
 * @param run The function of every program.
 */
internal class ScriptedRuntime(
    override val version: String = "scripted 1",
    override val isInProcess: Boolean = true,
    private val run: (ScriptedProgram) -> Unit = {},
) : ProgramRuntime {
    val loaded = mutableListOf<ScriptedProgram>()

    override fun load(
        form: ProgramForm,
        file: File,
    ): LoadedProgram = ScriptedProgram(form, script = run).also { loaded += it }
}

internal class ScriptedProgram(
    val form: ProgramForm,
    memory: ProgramMemory = ProgramMemory(form, ByteBuffer.allocateDirect(ProgramMemory.bytes(form))),
    private val script: (ScriptedProgram) -> Unit,
) : LoadedProgram {
    override val arguments = memory.arguments
    override val results = memory.results
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
}
