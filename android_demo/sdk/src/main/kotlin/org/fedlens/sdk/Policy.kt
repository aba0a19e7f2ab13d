package org.fedlens.sdk

/**
 * The owner's limits on what a server may learn, whatever it asks. By default it learns nothing: an app allows what its
 * user was asked and has agreed to.
 *
 * @property upload True if trained weights may be uploaded; otherwise assignments with an upload are refused with
 *     reason `policy`, and the client still receives models.
 * @property answerClassCounts True if the server may learn the number of train photos per class.
 * @property answerEvaluation True if it may learn how many of this client's test photos are classified correctly.
 * @property answerConfusion True if it may learn the confusion matrix of those test photos.
 * @property answerLabelDistribution True if it may learn noisy shares of the classes among the train photos.
 * @property leastEpsilon Smallest epsilon of a noisy share: a noisier answer would be useless, and is given for life.
 * @property mostEpsilon Largest epsilon of a noisy share: less noise would hide too little.
 * @property answerExactlyAfterNoise True if a server that has noisy shares of the same classes may also learn class
 *     counts and confusion, which undo the noise.
 * @property allowTables Names of the tables, such as `prototypes`, that may be uploaded, and of sets of client state, as
 *     `state/NAME`, that uploaded weights may be made from or pulled towards. The exporter of a bundle names
 *     them, so pin [bundles] to be sure of their content.
 * @property leastTrainPhotos Fewest photos to train on, to count, or to measure on; an update from fewer shows much of
 *     each. A check-in with fewer says that there are none, so that no round waits for a refusal.
 * @property leastBatches Fewest batches of a training; the change after one batch is a gradient, from which photos can be
 *     reconstructed.
 * @property bundles Digests, in lower-case hexadecimal, of the only manifests that may run here; null: any that the
 *     server chooses.
 */
public data class Policy
    @JvmOverloads
    constructor(
        val upload: Boolean = false,
        val answerClassCounts: Boolean = false,
        val answerEvaluation: Boolean = false,
        val answerConfusion: Boolean = false,
        val answerLabelDistribution: Boolean = false,
        val leastEpsilon: Double = 0.0,
        val mostEpsilon: Double = Double.POSITIVE_INFINITY,
        val answerExactlyAfterNoise: Boolean = false,
        val allowTables: Set<String> = emptySet(),
        val leastTrainPhotos: Int = 8,
        val leastBatches: Long = 2,
        val bundles: Set<String>? = null,
    )
