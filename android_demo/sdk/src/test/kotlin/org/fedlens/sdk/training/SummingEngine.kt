package org.fedlens.sdk.training

import org.fedlens.sdk.Bundle
import org.fedlens.sdk.EngineException
import org.fedlens.sdk.blob.FloatTensor
import org.fedlens.sdk.blob.Tensor
import org.fedlens.sdk.engine.Engine
import org.fedlens.sdk.engine.Rows
import org.fedlens.sdk.engine.Uniforms

/**
 * Training that can be done by hand, every operation in float32: a photo of class c with features x adds lr * x to row
 * c of `fc.weight` and lr to place c of `fc.bias`. After each batch mu * (tensor - reference) is subtracted. The loss of
 * a step is the first bias. Remembers what it was given.
 */
internal open class SummingEngine(
    override val bundle: Bundle,
) : Engine {
    val programs = ArrayList<String>()
    val batches = ArrayList<List<List<Int>>>()
    val weights = ArrayList<Map<String, Tensor>>()
    val references = ArrayList<Map<String, Map<String, Tensor>>>()
    val seen = ArrayList<FloatArray>()
    var embedded = 0
    var viewed = 0
    var extracted = 0
    var predicted = 0
    var isClosed = false

    private val width get() = bundle.manifest.tensorsList.first { it.name == "fc.weight" }.shapeList[1].toInt()

    /** The mean of each colour, again and again. */
    override fun embed(photo: FloatArray): FloatArray {
        embedded++
        val pixels = photo.size / 3
        val means = FloatArray(3) { colour -> (0 until pixels).map { photo[colour * pixels + it] }.average().toFloat() }
        val slots = bundle.manifest.programsList.first { it.name == "embed" }.outputsList
        return FloatArray(slots[0].shapeList[1].toInt()) { means[it % 3] }
    }

    /** The photo times its first number. */
    override fun view(
        photos: FloatArray,
        uniforms: FloatArray,
    ): FloatArray {
        viewed++
        return FloatArray(photos.size) { photos[it] * uniforms[0] }
    }

    override fun train(
        program: String,
        weights: Map<String, Tensor>,
        rows: Rows,
        batches: Sequence<IntArray>,
        hyper: Map<String, Double>,
        references: Map<String, Map<String, Tensor>>,
        uniforms: Uniforms?,
        onStep: (Float) -> Unit,
    ): Map<String, Tensor> {
        programs += program
        this.weights += weights
        this.references += references
        val given = ArrayList<List<Int>>()
        this.batches += given
        val defaults = bundle.manifest.hyperParametersList.associate { it.name to it.defaultValue }
        val (lr, mu) = listOf("lr", "mu").map { (hyper[it] ?: defaults.getValue(it)).toFloat() }
        val trained = listOf("fc.bias", "fc.weight").associateWith { (weights.getValue(it) as FloatTensor).toArray() }
        for (batch in batches) {
            given += batch.toList()
            for (row in batch) add(rows, row, lr, trained)
            if (mu != 0f) {
                for ((name, values) in trained) {
                    val reference = (references.getValue("global").getValue(name) as FloatTensor).toArray()
                    for (i in values.indices) values[i] -= mu * (values[i] - reference[i])
                }
            }
            val loss = trained.getValue("fc.bias")[0]
            if (!loss.isFinite()) throw EngineException(EngineException.Reason.NON_FINITE, "the loss is $loss")
            onStep(loss)
        }
        return trained.mapValues { (name, values) -> FloatTensor.of(weights.getValue(name).shape, values) }
    }

    private fun add(
        rows: Rows,
        row: Int,
        lr: Float,
        trained: Map<String, FloatArray>,
    ) {
        val views = rows.views
        val inputs = rows.inputs.copyOfRange(row * width, (row + 1) * width)
        if (views != null) {
            // Of several views the first one counts.
            val taken = FloatArray(views.width).also { views.take(intArrayOf(row), it) }
            seen += taken
            taken.copyInto(inputs, 0, 0, width)
        }
        val label = rows.labels[row].toInt()
        trained.getValue("fc.bias")[label] += lr
        for (j in inputs.indices) trained.getValue("fc.weight")[label * width + j] += lr * inputs[j]
    }

    override fun derive(
        program: String,
        hyper: Map<String, Double>,
        references: Map<String, Map<String, Tensor>>,
        rows: Rows?,
    ): Map<String, Tensor> = error("not asked here")

    override fun predict(
        weights: Map<String, Tensor>,
        inputs: FloatArray,
        program: String,
        references: Map<String, Map<String, Tensor>>,
    ): FloatArray {
        predicted++
        val bias = (weights.getValue("fc.bias") as FloatTensor).toArray()
        val matrix = (weights.getValue("fc.weight") as FloatTensor).toArray()
        return FloatArray(inputs.size / width * 2) { place ->
            val (row, label) = place / 2 to place % 2
            var logit = bias[label]
            for (j in 0 until width) logit += inputs[row * width + j] * matrix[label * width + j]
            logit
        }
    }

    override fun extract(
        extractor: Map<String, Tensor>,
        inputs: FloatArray,
    ): FloatArray {
        val tensor =
            extractor["base.weight"] ?: throw EngineException(
                EngineException.Reason.BAD_INPUT,
                "tensor 'base.weight' is missing from the extractor",
            )
        val matrix = (tensor as FloatTensor).toArray()
        val wide = matrix.size / SummingBundle.EXTRACTED
        val rows = inputs.size / wide
        extracted += (rows + bundle.manifest.batch - 1) / bundle.manifest.batch
        return FloatArray(rows * SummingBundle.EXTRACTED) { place ->
            val (row, output) = place / SummingBundle.EXTRACTED to place % SummingBundle.EXTRACTED
            var sum = 0f
            for (j in 0 until wide) sum += inputs[row * wide + j] * matrix[output * wide + j]
            sum
        }
    }

    override fun close() {
        isClosed = true
    }
}
