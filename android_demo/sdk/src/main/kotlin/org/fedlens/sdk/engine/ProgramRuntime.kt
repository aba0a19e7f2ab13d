package org.fedlens.sdk.engine

import org.fedlens.sdk.blob.TensorSpec
import java.io.Closeable
import java.io.File
import java.nio.ByteBuffer

/**
 * What runs `.pte` programs on a platform: plain functions over flat tensors, on one thread, so that results do not
 * depend on the number of cores.
 */
public interface ProgramRuntime {
    /**
     * Which runtime this is, with its version, such as `executorch 1.4.1`. A program that has ended the process before
     * is tried anew when this text changes.
     *
     * @throws org.fedlens.sdk.EngineException With reason `RUNTIME_MISSING`.
     */
    public val version: String

    /**
     * Loads a program.
     *
     * @param form What it takes and gives; its arguments and results have been compared with the file already.
     * @param file A `.pte` with one method, `forward`; must stay as it is until the program is closed.
     * @throws org.fedlens.sdk.EngineException With reason `BUNDLE_UNUSABLE`: the runtime refuses it, or it is something
     *     else than [form] says; with `RUNTIME_MISSING`: the native library is not there.
     */
    public fun load(
        form: ProgramForm,
        file: File,
    ): LoadedProgram
}

/**
 * What a program takes and gives, in calling order.
 *
 * @property name As in the manifest, for messages.
 * @property inputs Its arguments, each float32 or int64.
 * @property outputs Its results, each float32 or int64.
 * @property replaced For each output the argument that it becomes, which has its shape and type, or -1.
 */
public class ProgramForm(
    public val name: String,
    public val inputs: List<TensorSpec>,
    public val outputs: List<TensorSpec>,
    public val replaced: List<Int> = outputs.map { -1 },
) {
    init {
        require(replaced.size == outputs.size) { "${replaced.size} targets for ${outputs.size} outputs" }
        for ((output, target) in outputs.zip(replaced)) {
            if (target < 0) continue
            val (input, what) = inputs[target] to "output ${output.name} for argument ${inputs[target].name}"
            require(input.dtype == output.dtype && input.shape == output.shape) { "$what, of another form" }
        }
    }

    internal companion object {
        /** Of a program's file, and of all that it takes and gives. */
        const val MOST_BYTES = 1L shl 30

        /** Of a tensor. */
        const val MOST_DIMENSIONS = 16
    }
}

/**
 * A program with memory for its arguments and results. Used by one thread at a time.
 *
 * Buffers are direct, in the machine's byte order, of as many bytes as their tensor has, at position 0. They stay the
 * same for as long as the program is loaded, and are safe to touch after [close].
 */
public interface LoadedProgram : Closeable {
    /** Where the arguments are written; one buffer for each input. What is in them stays between runs. */
    public val arguments: List<ByteBuffer>

    /** Where the results stand; one buffer for each output, which is its argument's own where it replaces one. */
    public val results: List<ByteBuffer>

    /**
     * Runs the program once. Only then are results copied onto the arguments that they replace.
     *
     * @throws org.fedlens.sdk.EngineException With reason `BUNDLE_UNUSABLE`: the program contradicts itself.
     * @throws IllegalStateException It is closed.
     */
    public fun run()

    /** Frees what the runtime holds; once more does nothing. */
    override fun close()
}
