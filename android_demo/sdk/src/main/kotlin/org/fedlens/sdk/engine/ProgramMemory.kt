package org.fedlens.sdk.engine

import org.fedlens.sdk.blob.TensorSpec
import java.nio.Buffer
import java.nio.ByteBuffer
import java.nio.ByteOrder

/**
 * Memory for the arguments and results of a program, laid out in one buffer.
 *
 * @param whole At least [bytes] of the form, direct. Two processes that share it lay it out alike.
 */
internal class ProgramMemory(
    form: ProgramForm,
    private val whole: ByteBuffer,
) {
    private var at = 0

    /** As [LoadedProgram.arguments]. */
    val arguments: List<ByteBuffer> = form.inputs.map(::next)

    /** As [LoadedProgram.results]. */
    val results: List<ByteBuffer> =
        form.outputs.zip(form.replaced) { output, target -> if (target < 0) next(output) else arguments[target] }

    private fun next(spec: TensorSpec): ByteBuffer {
        val from = whole.duplicate()
        // On Android 8 only Buffer declares these methods; newer Java versions override them in each subclass.
        val plain: Buffer = from
        plain.position(at)
        plain.limit(at + Math.toIntExact(spec.bytes))
        at += aligned(spec)
        return from.slice().order(ByteOrder.nativeOrder())
    }

    companion object {
        private const val ALIGNMENT = 64

        /** The bytes that the memory takes; at least 1. */
        fun bytes(form: ProgramForm): Int {
            val given = form.outputs.filterIndexed { i, _ -> form.replaced[i] < 0 }
            return (form.inputs + given).fold(0) { sum, spec -> Math.addExact(sum, aligned(spec)) }.coerceAtLeast(1)
        }

        private fun aligned(spec: TensorSpec): Int =
            Math.multiplyExact(Math.addExact(Math.toIntExact(spec.bytes), ALIGNMENT - 1) / ALIGNMENT, ALIGNMENT)
    }
}
