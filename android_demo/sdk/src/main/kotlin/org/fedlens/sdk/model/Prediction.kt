package org.fedlens.sdk.model

import org.fedlens.sdk.EngineException
import org.fedlens.sdk.engine.Engine
import org.fedlens.sdk.photo.PhotoDecoder
import org.fedlens.sdk.training.Extracted
import org.fedlens.sdk.training.PhotoReader
import org.fedlens.sdk.training.Tensors
import kotlin.math.exp
import kotlin.math.ln

/** Prediction of a photo's class. */
internal object Prediction {
    /**
     * The probability of each class, in label order; they add up to 1.
     *
     * @param engine Engine of the bundle that the weights belong to.
     * @param weights Every exchangeable tensor.
     * @param decoder Decoder of photos, for [input].
     * @param input Reads or gives the features to predict from.
     * @param extractors Tensors of the concatenated extractors, in order; null for an absent one.
     * @throws org.fedlens.sdk.PhotoException The photo cannot be decoded.
     * @throws java.io.IOException The photo cannot be read.
     * @throws EngineException The weights do not fit, or a program cannot be run.
     */
    fun predict(
        engine: Engine,
        weights: Tensors,
        decoder: PhotoDecoder,
        input: PhotoReader.() -> FloatArray,
        extractors: List<Tensors?> = emptyList(),
    ): Map<String, Double> {
        val manifest = engine.bundle.manifest
        val features = PhotoReader(engine, decoder).input()
        if (extractors.size != manifest.concatenated) {
            val message =
                "the model takes ${manifest.concatenated} extractors side by side, there are ${extractors.size}"
            throw EngineException(EngineException.Reason.BAD_INPUT, message)
        }
        val row = if (extractors.isEmpty()) features else Extracted.oneRow(features, engine, extractors)
        return manifest.classNamesList.zip(probabilities(engine.predict(weights, row))).toMap()
    }

    private fun probabilities(logits: FloatArray): List<Double> {
        val greatest = logits.max().toDouble()
        val total = ln(logits.sumOf { exp(it - greatest) })
        return logits.map { exp(it - greatest - total) }
    }
}
