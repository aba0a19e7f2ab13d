package org.fedlens.sdk.pass

import org.fedlens.sdk.EngineException
import org.fedlens.sdk.engine.Engine
import org.fedlens.sdk.photo.PhotoDecoder
import java.io.File
import kotlin.math.exp
import kotlin.math.ln

/** What a model sees in a photo. */
internal object Prediction {
    /**
     * The probability of each class, in label order; they add up to 1.
     *
     * @param engine Of the bundle that the weights belong to.
     * @param weights Every exchangeable tensor.
     * @param extractors Of a bundle that concatenates them, the tensors of each in order, null for one that is absent.
     * @throws org.fedlens.sdk.PhotoException The photo cannot be decoded.
     * @throws java.io.IOException It cannot be read.
     * @throws EngineException The weights do not fit, or a program cannot be run.
     */
    fun predict(
        engine: Engine,
        weights: Tensors,
        decoder: PhotoDecoder,
        photo: File,
        extractors: List<Tensors?> = emptyList(),
    ): Map<String, Double> {
        val manifest = engine.bundle.manifest
        val features = PhotoReader(engine, decoder).features(photo)
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
