package org.fedlens.sdk.engine

import org.fedlens.sdk.blob.TensorSpec
import java.io.Closeable
import java.io.File
import java.nio.ByteBuffer

/**
 * A platform's runtime for `.pte` programs. Programs are pure functions of flat tensors; they run on one thread, so
 * that results do not depend on the number of cores.
 */
public interface ProgramRuntime {
    /**
     * Name and version of the runtime, such as `executorch 1.4.1`. When this text changes, programs are tried again.
     *
     * @throws org.fedlens.sdk.EngineException With reason `RUNTIME_MISSING`.
     */
    public val version: String

    /** True if programs run in this process, which they can end: each is then tried before it is used. */
    public val isInProcess: Boolean get() = true

    /**
     * Load a program.
     *
     * @param form The program's inputs and outputs, which the file must have. Nothing but the runtime reads the file.
     * @param file A `.pte` file with one method, `forward`; it must not change until the program is closed.
     * @throws org.fedlens.sdk.EngineException With reason `BUNDLE_UNUSABLE`: the runtime refuses the program, or it
     *     does not match [form]; with `RUNTIME_MISSING`: the native library is missing, or the process for programs;
     *     with `CRASHED`: that process has ended.
     */
    public fun load(
        form: ProgramForm,
        file: File,
    ): LoadedProgram
}

/**
 * The inputs and outputs of a program, in calling order.
 *
 * @property name Name in the manifest, for messages.
 * @property inputs Arguments, each float32 or int64.
 * @property outputs Results, each float32 or int64.
 * @property replaced For each output, the index of the argument that it replaces, of the same shape and type, or -1.
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
        /** Maximum size of all inputs and outputs together. */
        const val MOST_BYTES = 1L shl 30

        /** Maximum number of dimensions of a tensor. */
        const val MOST_DIMENSIONS = 16
    }
}

/**
 * A loaded program with memory for its arguments and results. Used by one thread at a time.
 *
 * Buffers are direct, in native byte order, exactly as large as their tensor, at position 0. They stay the same while
 * the program is loaded, and remain safe to access after [close].
 */
public interface LoadedProgram : Closeable {
    /** Memory of the arguments, one buffer per input. The content stays between runs. */
    public val arguments: List<ByteBuffer>

    /** Memory of the results, one buffer per output; an output that replaces an argument shares its buffer. */
    public val results: List<ByteBuffer>

    /**
     * Run the program once, then copy results onto the arguments that they replace.
     *
     * @throws org.fedlens.sdk.EngineException With reason `BUNDLE_UNUSABLE`: the program contradicts itself; with
     *     `CRASHED`: the process for programs has ended.
     * @throws IllegalStateException It is closed.
     */
    public fun run()

    /** Free the runtime's resources; repeated calls have no effect. */
    override fun close()
}
