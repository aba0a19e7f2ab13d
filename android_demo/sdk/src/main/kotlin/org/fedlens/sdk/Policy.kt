package org.fedlens.sdk

/**
 * What a client is ready to tell, whatever a server asks: its owner's word, not the server's. The default answers
 * everything that this version knows.
 *
 * @property upload Whether trained weights may leave; if not, an assignment that uploads is refused with reason
 *     `policy`, and the client still receives models.
 * @property answerClassCounts Whether the server may learn how many train photos there are of each class.
 * @property answerEvaluation Whether it may learn how many of this client's test photos are classified rightly.
 * @property answerConfusion Whether it may learn, for each class of those test photos, as what they are classified.
 * @property answerLabelDistribution Whether it may learn the share of each class among the train photos with noise.
 * @property leastEpsilon A noisy share is refused where epsilon is smaller: it would be the answer for life, and
 *     useless.
 * @property mostEpsilon It is refused where epsilon is larger, and the noise so small that it hides too little.
 * @property answerExactlyAfterNoise Whether class counts and confusion are answered to a server that was given noisy
 *     shares of the same classes before, whose noise they undo.
 * @property bundles Digests, as lower-case hexadecimal digits, of the only manifests that may run here; null trusts the
 *     server's choice.
 */
public data class Policy(
    val upload: Boolean = true,
    val answerClassCounts: Boolean = true,
    val answerEvaluation: Boolean = true,
    val answerConfusion: Boolean = true,
    val answerLabelDistribution: Boolean = true,
    val leastEpsilon: Double = 0.0,
    val mostEpsilon: Double = Double.POSITIVE_INFINITY,
    val answerExactlyAfterNoise: Boolean = false,
    val bundles: Set<String>? = null,
)
