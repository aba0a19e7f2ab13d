package org.fedlens.jvm

import org.fedlens.sdk.Bundle
import org.fedlens.sdk.blob.FloatTensor
import org.fedlens.sdk.blob.Tensor
import org.fedlens.sdk.engine.CountedCrashes
import org.fedlens.sdk.engine.ProgramEngine
import org.fedlens.sdk.engine.Rows
import org.fedlens.sdk.toHex
import java.io.File
import java.nio.ByteBuffer
import java.nio.ByteOrder
import java.security.MessageDigest
import java.util.concurrent.CountDownLatch
import java.util.concurrent.atomic.AtomicBoolean
import kotlin.concurrent.thread

/**
 * The JVM's half of `bench/jvm_engine.py`. For each line of its input it writes the milliseconds that one of several took:
 *
 *     EPOCHS            epochs of training, and the SHA-256 of the last result
 *     alone COUNT       predictions for all rows, by an engine of their own, as in a client
 *     beside COUNT      the same while another thread trains
 */
object EpochBench {
    @JvmStatic
    fun main(arguments: Array<String>) {
        val folder = File(arguments.single())
        val bundle = Bundle.open(File(folder, "bundle"))
        // In the heap, as a client has what it trains on.
        val weights = bundle.initial().tensors.mapValues { (_, tensor) -> copy(tensor as FloatTensor) }
        val labels =
            read(folder, "labels.i64").asLongBuffer().let { buffer ->
                LongArray(buffer.remaining()).also(buffer::get)
            }
        val inputs =
            read(folder, "features.f32").asFloatBuffer().let { buffer ->
                FloatArray(buffer.remaining()).also(buffer::get)
            }
        val rows = Rows(inputs, labels)
        val batches = labels.indices.chunked(bundle.manifest.batch) { it.toIntArray() }
        val rates = mapOf("lr_extractor" to 0.01, "lr_classifier" to 0.01)
        val trials = File(folder, "trials")

        fun engine() = ProgramEngine(bundle, JniRuntime(), trials, CountedCrashes())
        engine().use { training ->
            engine().use { predicting ->
                fun train(onStep: (Float) -> Unit = {}) =
                    training.train("step", weights, rows, batches.asSequence(), rates, onStep = onStep)

                fun predictions(count: Int) = ms(count) { repeat(count) { predicting.predict(weights, inputs) } }
                for (line in generateSequence(::readLine)) {
                    val (what, count) = line.split(" ").let { it.first() to it.last().toInt() }
                    when (what) {
                        "alone" -> println("${predictions(count)}")
                        "beside" -> println("${beside(::train) { predictions(count) }}")
                        else -> {
                            var trained: Map<String, Tensor> = emptyMap()
                            val taken = ms(count) { repeat(count) { trained = train() } }
                            println("$taken ${digest(trained)}")
                        }
                    }
                }
            }
        }
    }

    private fun ms(
        count: Int,
        work: () -> Unit,
    ): Double {
        val start = System.nanoTime()
        work()
        return (System.nanoTime() - start) / 1e6 / count
    }

    /** What [work] gives while another thread trains again and again. */
    private fun <T> beside(
        train: ((Float) -> Unit) -> Unit,
        work: () -> T,
    ): T {
        val begun = CountDownLatch(1)
        val done = AtomicBoolean()
        val other = thread { while (!done.get()) train { begun.countDown() } }
        begun.await()
        return work().also {
            done.set(true)
            other.join()
        }
    }

    private fun copy(tensor: FloatTensor): Tensor = FloatTensor.of(tensor.shape, tensor.toArray())

    private fun read(
        folder: File,
        name: String,
    ) = ByteBuffer.wrap(File(folder, name).readBytes()).order(ByteOrder.LITTLE_ENDIAN)

    private fun digest(tensors: Map<String, Tensor>): String {
        val found = MessageDigest.getInstance("SHA-256")
        for ((_, tensor) in tensors.toSortedMap()) {
            val values = (tensor as FloatTensor).toArray()
            val bytes = ByteBuffer.allocate(4 * values.size).order(ByteOrder.LITTLE_ENDIAN)
            bytes.asFloatBuffer().put(values)
            found.update(bytes.array())
        }
        return found.digest().toHex()
    }
}
