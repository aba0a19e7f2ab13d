package org.fedlens.sdk.store

import org.fedlens.sdk.AssignmentException
import org.fedlens.sdk.Evaluation
import org.fedlens.sdk.blob.TensorSpec

/**
 * A message that left this phone, or is about to.
 *
 * @property id Id, which grows with every entry.
 * @property outcome Known outcome of the delivery.
 * @property timeMs Time of arrival or refusal, in milliseconds since 1970; while it waits, time of creation.
 * @property bytes Size of the request's body in bytes.
 */
public sealed interface JournalEntry {
    public val id: Long
    public val outcome: Outcome
    public val timeMs: Long
    public val bytes: Long

    /** The known outcome of a request. */
    public enum class Outcome {
        /** The server has not confirmed it yet. Part of it may have left. */
        WAITING,

        /** The server has it. */
        DELIVERED,

        /** The server did not take it. */
        REFUSED,

        /** It will not be sent: the server no longer knew this client. */
        DROPPED,

        /** It may have arrived: the client gave up, or the process ended, before the server responded. */
        UNKNOWN,
    }

    /**
     * An enrolment of this phone.
     *
     * @property models Names of the models that the phone offers to train; empty: any.
     */
    public class Enrolment internal constructor(
        override val id: Long,
        override val outcome: Outcome,
        override val timeMs: Long,
        override val bytes: Long,
        public val models: List<String>,
    ) : JournalEntry

    /**
     * The result of a round.
     *
     * @property tensors Name, type and shape of the tensors sent; empty: none.
     * @property isDifference True if the tensors are a delta to the downloaded model.
     * @property numExamples Number of photos trained on.
     * @property classCounts Number of photos of each class, in label order; empty if not sent.
     * @property labelDistribution Noisy share of each class, in label order; empty if not sent.
     * @property start Evaluation on test photos before training; null if not sent.
     * @property end Evaluation after training; null if not sent.
     * @property fineTuning Fine-tuned evaluation: after a training whose weights were discarded; null if not sent.
     */
    public class Upload internal constructor(
        override val id: Long,
        override val outcome: Outcome,
        override val timeMs: Long,
        override val bytes: Long,
        public val task: Long,
        public val round: Long,
        public val tensors: List<TensorSpec>,
        public val isDifference: Boolean,
        public val numExamples: Long,
        public val classCounts: List<Long>,
        public val labelDistribution: List<Double>,
        public val start: Evaluation?,
        public val end: Evaluation?,
        public val fineTuning: Evaluation?,
    ) : JournalEntry

    /**
     * A report that the phone gave up a round.
     *
     * @property reason Reason sent to the server.
     * @property detail Message sent to the server.
     */
    public class Failure internal constructor(
        override val id: Long,
        override val outcome: Outcome,
        override val timeMs: Long,
        override val bytes: Long,
        public val task: Long,
        public val round: Long,
        public val reason: AssignmentException.Reason,
        public val detail: String,
    ) : JournalEntry
}
