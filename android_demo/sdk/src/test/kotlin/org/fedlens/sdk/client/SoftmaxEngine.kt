package org.fedlens.sdk.client

import org.fedlens.sdk.Bundle
import org.fedlens.sdk.EngineException
import org.fedlens.sdk.blob.FloatTensor
import org.fedlens.sdk.blob.Tensor
import org.fedlens.sdk.engine.Engine
import org.fedlens.sdk.engine.Rows
import org.fedlens.sdk.engine.Uniforms
import kotlin.math.exp
import kotlin.math.ln

/**
 * Softmax regression on the mean colours of a photo, trained by SGD: an engine for the bundle of the vectors that needs
 * no runtime. Of the tensors it uses `classifier.bias` [3] and the first three columns of `classifier.weight` [3, 6].
 */
class SoftmaxEngine(
    override val bundle: Bundle,
) : Engine {
    override fun embed(photo: FloatArray): FloatArray {
        val pixels = photo.size / COLOURS
        val features = FloatArray(FEATURES)
        for (colour in 0 until COLOURS) {
            features[colour] = (0 until pixels).map { photo[colour * pixels + it] }.average().toFloat()
        }
        return features
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
        val rate = hyper.getValue("lr_classifier").toFloat()
        val bias = weights.floats(BIAS)
        val weight = weights.floats(WEIGHT)
        for (batch in batches) {
            var loss = 0.0
            for (row in batch) {
                val label = rows.labels[row].toInt()
                val shares = softmax(logits(bias, weight, rows.inputs, row))
                loss -= ln(shares[label])
                for (k in 0 until CLASSES) {
                    val error = (shares[k] - (if (k == label) 1 else 0)).toFloat() / batch.size
                    bias[k] -= rate * error
                    for (j in 0 until COLOURS) weight[k * HIDDEN + j] -= rate * error * rows.inputs[row * FEATURES + j]
                }
            }
            if (!loss.isFinite()) throw EngineException(EngineException.Reason.NON_FINITE, "training gave a NaN")
            onStep((loss / batch.size).toFloat())
        }
        return weights +
            mapOf(
                BIAS to FloatTensor.of(weights.getValue(BIAS).shape, bias),
                WEIGHT to FloatTensor.of(weights.getValue(WEIGHT).shape, weight),
            )
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
    ): FloatArray =
        (0 until inputs.size / FEATURES)
            .flatMap { logits(weights.floats(BIAS), weights.floats(WEIGHT), inputs, it).asList() }
            .toFloatArray()

    override fun view(
        photos: FloatArray,
        uniforms: FloatArray,
    ): FloatArray = throw EngineException(EngineException.Reason.BAD_INPUT, "the bundle has no views")

    override fun extract(
        extractor: Map<String, Tensor>,
        inputs: FloatArray,
    ): FloatArray = throw EngineException(EngineException.Reason.BAD_INPUT, "the bundle has no extractors")

    override fun close() = Unit

    companion object {
        const val BIAS = "classifier.bias"
        const val WEIGHT = "classifier.weight"
        private const val COLOURS = 3
        private const val CLASSES = 3
        private const val HIDDEN = 6
        private const val FEATURES = 16

        private fun Map<String, Tensor>.floats(name: String) = (getValue(name) as FloatTensor).toArray()

        private fun logits(
            bias: FloatArray,
            weight: FloatArray,
            inputs: FloatArray,
            row: Int,
        ) = FloatArray(CLASSES) { k ->
            (0 until COLOURS).fold(bias[k]) { sum, j -> sum + weight[k * HIDDEN + j] * inputs[row * FEATURES + j] }
        }

        private fun softmax(logits: FloatArray): DoubleArray {
            val raised = logits.map { exp(it.toDouble() - logits.max()) }
            return DoubleArray(CLASSES) { raised[it] / raised.sum() }
        }
    }
}
