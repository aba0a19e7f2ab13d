package org.fedlens.app

import org.fedlens.sdk.engine.LoadedProgram
import org.fedlens.sdk.engine.ProgramForm
import org.fedlens.sdk.engine.ProgramRuntime
import java.io.File
import java.nio.ByteBuffer
import java.nio.ByteOrder
import kotlin.math.exp
import kotlin.math.ln

/**
 * A runtime in Kotlin for the bundle of the test vectors: features are colours, and `step` trains the classifier's two
 * tensors by softmax regression, so a model does improve.
 *
 * @param onStep Called in the client's thread before each step.
 */
internal class DesktopRuntime(
    private val onStep: () -> Unit = {},
) : ProgramRuntime {
    override val version: String = "desktop 1"

    override fun load(
        form: ProgramForm,
        file: File,
    ): LoadedProgram =
        when (form.name) {
            "embed" -> Program(form, ::embed)
            "predict" -> Program(form) { predict(it.arguments, WEIGHTS, it.results[0]) }
            "step" -> Program(form, ::step)
            else -> error("no program is called ${form.name}")
        }

    internal class Program(
        private val form: ProgramForm,
        private val work: (Program) -> Unit,
    ) : LoadedProgram {
        override val arguments: List<ByteBuffer> = form.inputs.map { buffer(it.shape, it.type) }
        override val results: List<ByteBuffer> = form.outputs.map { buffer(it.shape, it.type) }

        override fun run() {
            work(this)
            for ((result, target) in results.zip(form.replaced)) {
                if (target >= 0) arguments[target].duplicate().put(result.duplicate())
            }
        }

        override fun close() = Unit

        private fun buffer(
            shape: List<Long>,
            type: String,
        ): ByteBuffer {
            val width = if (type.endsWith("64")) Long.SIZE_BYTES else Float.SIZE_BYTES
            val bytes = shape.fold(width) { size, dimension -> size * dimension.toInt() }
            return ByteBuffer.allocateDirect(bytes).order(ByteOrder.nativeOrder())
        }
    }

    /** The excess of each colour over the others, then zeros. */
    private fun embed(program: Program) {
        val photo = program.arguments[0].asFloats()
        val means = List(CHANNELS) { photo.slice(it * PIXELS until (it + 1) * PIXELS).average() }
        for (feature in 0 until FEATURES) {
            val more = if (feature < CHANNELS) (means[feature] - means.average()) * SCALE else 0.0
            program.results[0].putFloat(feature * Float.SIZE_BYTES, more.toFloat())
        }
    }

    private fun predict(
        arguments: List<ByteBuffer>,
        others: Int,
        logits: ByteBuffer,
    ) {
        val bias = arguments[0].asFloats()
        val weight = arguments[1].asFloats()
        val inputs = arguments[others].asFloats()
        for (row in 0 until BATCH) {
            for (name in 0 until CLASSES) {
                var sum = bias[name]
                for (i in 0 until HIDDEN) sum += weight[name * HIDDEN + i] * inputs[row * FEATURES + i]
                logits.putFloat((row * CLASSES + name) * Float.SIZE_BYTES, sum)
            }
        }
    }

    private fun step(program: Program) {
        onStep()
        val given = program.arguments
        for (i in 0 until 2 * WEIGHTS) program.results[i].duplicate().put(given[i].duplicate())
        val logits = program.results[2 * WEIGHTS + 1]
        predict(given, INPUT, logits)
        val labels = given[INPUT + 1].duplicate().order(ByteOrder.nativeOrder()).asLongBuffer()
        val mask = given[INPUT + 2].asFloats()
        val inputs = given[INPUT].asFloats()
        val rate = given[RATE].asFloats()[0]
        val rows = (0 until BATCH).filter { mask[it] > 0f }
        var loss = 0.0
        for (row in rows) {
            val shares = softmax(FloatArray(CLASSES) { logits.getFloat((row * CLASSES + it) * Float.SIZE_BYTES) })
            val label = labels[row].toInt()
            loss -= ln(shares[label])
            for (name in 0 until CLASSES) {
                val slope = (shares[name] - if (name == label) 1.0 else 0.0).toFloat() / rows.size * rate
                program.results[0].subtract(name, slope)
                for (i in 0 until HIDDEN) {
                    program.results[1].subtract(name * HIDDEN + i, slope * inputs[row * FEATURES + i])
                }
            }
        }
        program.results[2 * WEIGHTS].putFloat(0, (loss / rows.size).toFloat())
    }

    private fun softmax(logits: FloatArray): DoubleArray {
        val powers = DoubleArray(logits.size) { exp((logits[it] - logits.max()).toDouble()) }
        return DoubleArray(logits.size) { powers[it] / powers.sum() }
    }

    private fun ByteBuffer.subtract(
        place: Int,
        value: Float,
    ) {
        putFloat(place * Float.SIZE_BYTES, getFloat(place * Float.SIZE_BYTES) - value)
    }

    private fun ByteBuffer.asFloats(): FloatArray {
        val floats = duplicate().order(ByteOrder.nativeOrder()).asFloatBuffer()
        return FloatArray(floats.remaining()).also { floats.get(it) }
    }

    private companion object {
        // The shapes of tests/vectors/bundle.
        const val CHANNELS = 3
        const val PIXELS = 16 * 16
        const val FEATURES = 16
        const val HIDDEN = 6
        const val CLASSES = 3
        const val BATCH = 4
        const val WEIGHTS = 4
        const val INPUT = 12
        const val RATE = 16
        const val SCALE = 24.0
    }
}
