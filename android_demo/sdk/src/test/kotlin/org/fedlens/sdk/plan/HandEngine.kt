package org.fedlens.sdk.plan

import org.fedlens.sdk.Bundle
import org.fedlens.sdk.blob.FloatTensor
import org.fedlens.sdk.blob.Tensor
import org.fedlens.sdk.engine.Engine
import org.fedlens.sdk.engine.Rows
import org.fedlens.sdk.engine.Uniforms

/**
 * The arithmetic of `tests/vectors/README.md`, under *Local plans of every kind*, every operation in float32. It
 * remembers the batches of each training and all losses.
 */
internal class HandEngine(
    override val bundle: Bundle,
) : Engine {
    val batches = ArrayList<List<List<Int>>>()
    val losses = ArrayList<Float>()

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
        val (bias, weight) = weights.floats("fc.bias") to weights.floats("fc.weight")
        val lr = hyper(hyper, "lr")
        val taken = ArrayList<List<Int>>()
        for ((step, batch) in batches.withIndex()) {
            taken += batch.toList()
            val drawn = checkNotNull(uniforms).of(step, 0, 2 * BATCH)
            for ((place, row) in batch.withIndex()) {
                var label = rows.labels[row].toInt()
                var (more, by) = lr to lr
                if (program == "noisy") {
                    more = lr * drawn[2 * place] * references.getValue("counts").floats("label_counts")[label]
                    by = lr * drawn[2 * place + 1]
                }
                if (program == "distil") {
                    label = 0
                    more = lr * references.getValue("teacher").floats("score")[row]
                    by = more
                }
                bias[label] += more
                for (j in 0 until FEATURES) weight[label * FEATURES + j] += by * rows.inputs[row * FEATURES + j]
            }
            val mu = hyper(hyper, "mu")
            val global = references["global"]
            if (program == "step" && mu != 0f && global != null) {
                pull(bias, global.floats("fc.bias"), mu)
                pull(weight, global.floats("fc.weight"), mu)
            }
            losses += bias[0]
            onStep(bias[0])
        }
        this.batches += taken
        return weights(bias, weight)
    }

    override fun derive(
        program: String,
        hyper: Map<String, Double>,
        references: Map<String, Map<String, Tensor>>,
        rows: Rows?,
    ): Map<String, Tensor> =
        when (program) {
            "sums" -> sums(checkNotNull(rows), references.getValue("model").floats("fc.bias"))
            "mean" -> {
                val count = references.getValue("sums").floats("count")[0]
                val mean = references.getValue("sums").floats("sum").map { it / count }.toFloatArray()
                references["previous"]?.let { previous ->
                    val stay = hyper(hyper, "stay")
                    for ((j, before) in previous.floats("mean").withIndex()) mean[j] += stay * (before - mean[j])
                }
                mapOf("mean" to FloatTensor.of(listOf(FEATURES.toLong()), mean))
            }
            "scores" -> {
                val inputs = checkNotNull(rows).inputs
                val logits = predict(references.getValue("model"), inputs)
                val scores = FloatArray(logits.size / CLASSES) { logits[it * CLASSES] }
                mapOf("score" to FloatTensor.of(listOf(scores.size.toLong()), scores))
            }
            else -> {
                val mixed = weights(FloatArray(CLASSES), FloatArray(CLASSES * FEATURES))
                mixed.mapValues { (name, tensor) ->
                    val values = (tensor as FloatTensor).toArray()
                    for (candidate in references.toSortedMap().values) {
                        for ((i, value) in candidate.floats(name).withIndex()) values[i] += 0.5f * value
                    }
                    FloatTensor.of(tensor.shape, values)
                }
            }
        }

    private fun sums(
        rows: Rows,
        bias: FloatArray,
    ): Map<String, Tensor> {
        val sum = FloatArray(FEATURES)
        for ((row, label) in rows.labels.withIndex()) {
            for (j in sum.indices) sum[j] += rows.inputs[row * FEATURES + j] * bias[label.toInt()]
        }
        val count = FloatTensor.of(emptyList(), floatArrayOf(rows.labels.size.toFloat()))
        return mapOf("count" to count, "sum" to FloatTensor.of(listOf(FEATURES.toLong()), sum))
    }

    override fun predict(
        weights: Map<String, Tensor>,
        inputs: FloatArray,
        program: String,
        references: Map<String, Map<String, Tensor>>,
    ): FloatArray {
        val (bias, weight) = weights.floats("fc.bias") to weights.floats("fc.weight")
        return FloatArray(inputs.size / FEATURES * CLASSES) { place ->
            val (row, label) = place / CLASSES to place % CLASSES
            var logit = bias[label]
            for (j in 0 until FEATURES) logit += inputs[row * FEATURES + j] * weight[label * FEATURES + j]
            if (program == "nearest") logit + references.getValue("means").floats("mean")[label] else logit
        }
    }

    override fun embed(photo: FloatArray): FloatArray = error("not asked here")

    override fun view(
        photos: FloatArray,
        uniforms: FloatArray,
    ): FloatArray = error("not asked here")

    override fun extract(
        extractor: Map<String, Tensor>,
        inputs: FloatArray,
    ): FloatArray = error("not asked here")

    override fun close() = Unit

    private fun hyper(
        given: Map<String, Double>,
        name: String,
    ): Float = (given[name] ?: bundle.manifest.hyperParametersList.first { it.name == name }.defaultValue).toFloat()

    private companion object {
        const val FEATURES = 3
        const val CLASSES = 2
        const val BATCH = 4

        fun Map<String, Tensor>.floats(name: String): FloatArray = (getValue(name) as FloatTensor).toArray()

        fun pull(
            values: FloatArray,
            to: FloatArray,
            mu: Float,
        ) {
            for (i in values.indices) values[i] -= mu * (values[i] - to[i])
        }

        fun weights(
            bias: FloatArray,
            weight: FloatArray,
        ): Map<String, Tensor> =
            mapOf(
                "fc.bias" to FloatTensor.of(listOf(CLASSES.toLong()), bias),
                "fc.weight" to FloatTensor.of(listOf(CLASSES.toLong(), FEATURES.toLong()), weight),
            )
    }
}
