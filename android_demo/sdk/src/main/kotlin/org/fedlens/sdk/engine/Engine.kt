package org.fedlens.sdk.engine

import org.fedlens.sdk.Bundle
import org.fedlens.sdk.blob.Tensor
import java.io.Closeable

/**
 * Runs the programs of one bundle; keeps nothing between calls but loaded programs. Used by one thread at a time.
 *
 * Arrays are row-major float32. Every call throws an [org.fedlens.sdk.EngineException].
 */
public interface Engine : Closeable {
    /** The bundle whose programs run. */
    public val bundle: Bundle

    /**
     * The frozen backbone's features of one photo.
     *
     * @param photo [3, H, W] in 0..1.
     * @return [F].
     */
    public fun embed(photo: FloatArray): FloatArray

    /**
     * One augmented view of each photo.
     *
     * @param photos [n, 3, H, W] in 0..1, n >= 1.
     * @param uniforms [n, r] in 0..1, 1 excluded.
     * @return [n, 3, H, W] in 0..1.
     */
    public fun view(
        photos: FloatArray,
        uniforms: FloatArray,
    ): FloatArray

    /**
     * Runs one stage of a local pass; optimiser state and step counters start at zero.
     *
     * @param program Name of a step program, such as `step`.
     * @param weights Every exchangeable tensor of the manifest.
     * @param rows The photos to train on.
     * @param batches For each step the indices into [rows], 1 to the manifest's batch of them, exactly as many where
     *     the manifest says `LAST_BATCH_FILLED`. Shorter ones are padded and masked here.
     * @param hyper Hyper-parameters by name; those left out take the manifest's default.
     * @param references For each reference of the manifest its tensors.
     * @param onStep Called after every step with its loss, a mean over the real rows. What it throws ends the training
     *     and goes to the caller: so a training is cancelled.
     * @return New tensors for every exchangeable tensor.
     */
    public fun train(
        program: String,
        weights: Map<String, Tensor>,
        rows: Rows,
        batches: Sequence<IntArray>,
        hyper: Map<String, Double> = emptyMap(),
        references: Map<String, Map<String, Tensor>> = emptyMap(),
        onStep: (Float) -> Unit = {},
    ): Map<String, Tensor>

    /**
     * The logits of these weights.
     *
     * @param inputs As [Rows.inputs], one row at least.
     * @return [n, classes].
     */
    public fun predict(
        weights: Map<String, Tensor>,
        inputs: FloatArray,
    ): FloatArray

    /**
     * The outputs of program `extract` with an extractor's tensors.
     *
     * @param inputs Features of the frozen backbone, [n, ...], n >= 1. Row i is computed at place i modulo batch, and
     *     its outputs depend on its content and its place alone.
     * @return [n, d].
     */
    public fun extract(
        extractor: Map<String, Tensor>,
        inputs: FloatArray,
    ): FloatArray
}

/**
 * What a client trains on or evaluates, one row a photo.
 *
 * @property inputs [n, F]: features of a frozen backbone, or what stands side by side for several extractors.
 * @property labels [n], each in 0 until classes.
 * @property views What training takes instead of the inputs, where the bundle has views.
 */
public class Rows(
    public val inputs: FloatArray,
    public val labels: LongArray,
    public val views: Views? = null,
)

/** Augmented views of each row's photo, for a bundle whose `step` takes several. */
public interface Views {
    /** Numbers of one row: V times what one view has, V being the manifest's `views`. */
    public val width: Int

    /** Writes the views of these rows, one row behind the other, to the beginning of [into]. */
    public fun take(
        rows: IntArray,
        into: FloatArray,
    )
}
