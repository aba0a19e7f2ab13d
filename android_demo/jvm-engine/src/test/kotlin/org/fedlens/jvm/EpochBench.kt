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

/**
 * The JVM's half of `bench/jvm_engine.py`: for each number on its input it trains that many epochs and writes the
 * milliseconds per epoch, and the SHA-256 of the last result.
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
        ProgramEngine(bundle, JniRuntime(), File(folder, "trials"), CountedCrashes()).use { engine ->
            for (line in generateSequence(::readLine)) {
                val epochs = line.toInt()
                var trained: Map<String, Tensor> = emptyMap()
                val start = System.nanoTime()
                repeat(epochs) { trained = engine.train("step", weights, rows, batches.asSequence(), rates) }
                val ms = (System.nanoTime() - start) / 1e6 / epochs
                println("$ms ${digest(trained)}")
            }
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
