package org.fedlens.sdk.engine

import org.fedlens.sdk.Bundle
import org.fedlens.sdk.blob.Tensor
import java.io.Closeable

/**
 * An engine that runs the programs of one bundle. Its only state is loaded programs. Used by one thread at a time.
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
     * Run a program that trains; optimiser state and step counters start at zero.
     *
     * @param program Name of the program, such as `step`.
     * @param weights Every exchangeable tensor of the manifest.
     * @param rows The photos to train on.
     * @param batches For each step, indices into [rows]: 1 up to the program's batch, or exactly that many under
     *     `LAST_BATCH_FILLED`. Shorter batches are padded and masked.
     * @param hyper Hyper-parameters by name; missing ones take the manifest's default.
     * @param references The tensors of each reference of the program. One that the program lists as optional may be
     *     missing: its tensors are then zeros, its presence 0. Of one whose rows the program takes, a tensor has a row
     *     for each of [rows].
     * @param uniforms Random numbers, for a program that takes some.
     * @param onStep Called after every step with its loss, a mean over the real rows. To cancel the training, throw:
     *     the exception reaches the caller.
     * @return New tensors for every exchangeable tensor.
     */
    public fun train(
        program: String,
        weights: Map<String, Tensor>,
        rows: Rows,
        batches: Sequence<IntArray>,
        hyper: Map<String, Double> = emptyMap(),
        references: Map<String, Map<String, Tensor>> = emptyMap(),
        uniforms: Uniforms? = null,
        onStep: (Float) -> Unit = {},
    ): Map<String, Tensor>

    /**
     * Run a program that derives a table or weights, over rows as they stand, or once without rows.
     *
     * @param hyper As in [train].
     * @param references As in [train].
     * @param rows At least one row if the program runs over rows, without their views; else null.
     * @return New tensors, by name: accumulators after the last batch, or results, [n, ...] if there is one for each
     *     row.
     */
    public fun derive(
        program: String,
        hyper: Map<String, Double> = emptyMap(),
        references: Map<String, Map<String, Tensor>> = emptyMap(),
        rows: Rows? = null,
    ): Map<String, Tensor>

    /**
     * The logits of these weights.
     *
     * @param inputs Inputs as [Rows.inputs], at least one row.
     * @param program Name of a program that predicts.
     * @param references As in [train].
     * @return [n, classes].
     */
    public fun predict(
        weights: Map<String, Tensor>,
        inputs: FloatArray,
        program: String = "predict",
        references: Map<String, Map<String, Tensor>> = emptyMap(),
    ): FloatArray

    /**
     * The outputs of program `extract` with an extractor's tensors.
     *
     * @param inputs Features of the frozen backbone, [n, ...], n >= 1. Row i is computed at position i modulo batch,
     *     and its outputs depend on its content and position only.
     * @return [n, d].
     */
    public fun extract(
        extractor: Map<String, Tensor>,
        inputs: FloatArray,
    ): FloatArray
}

/**
 * The data that a client trains on or evaluates, one row per photo.
 *
 * @property inputs [n, F]: features of a frozen backbone, or concatenated outputs of several extractors.
 * @property labels [n], each in 0 until classes.
 * @property views Replaces the inputs in training if the bundle has views.
 */
public class Rows(
    public val inputs: FloatArray,
    public val labels: LongArray,
    public val views: Views? = null,
)

/** The random numbers of a training, in [0, 1). */
public fun interface Uniforms {
    /**
     * [count] numbers for a step of the training.
     *
     * @param step Number of the step, from 0.
     * @param slot Number of the input among the program's random ones, from 0.
     */
    public fun of(
        step: Int,
        slot: Int,
        count: Int,
    ): FloatArray
}

/** Augmented views of each row's photo, for a bundle whose `step` takes several. */
public interface Views {
    /** Length of one row: V times the length of a view, where V is the manifest's `views`. */
    public val width: Int

    /** Write the views of these rows consecutively to the start of [into]. */
    public fun take(
        rows: IntArray,
        into: FloatArray,
    )
}
