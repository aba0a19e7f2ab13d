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
     * @property tables Names of the tables that it may upload.
     */
    public class Enrolment internal constructor(
        override val id: Long,
        override val outcome: Outcome,
        override val timeMs: Long,
        override val bytes: Long,
        public val models: List<String>,
        public val tables: List<String>,
    ) : JournalEntry

    /**
     * One blob of a result.
     *
     * @property name As in the local plan, such as `weights`.
     * @property tensors Name, type and shape of its tensors.
     * @property isDifference True if they are a delta to a downloaded set.
     */
    public class Sent internal constructor(
        public val name: String,
        public val tensors: List<TensorSpec>,
        public val isDifference: Boolean,
    )

    /**
     * The result of a round.
     *
     * @property sent The blobs, in the order of the local plan; empty: none.
     * @property numExamples Number of photos trained on.
     * @property classCounts Number of photos of each class, in label order; empty if not sent.
     * @property labelDistribution Noisy share of each class, in label order; empty if not sent.
     * @property evaluations Evaluations on test photos by label, in the order of the local plan: usually `start`, before
     *     training, and `trained`.
     */
    public class Upload internal constructor(
        override val id: Long,
        override val outcome: Outcome,
        override val timeMs: Long,
        override val bytes: Long,
        public val task: Long,
        public val round: Long,
        public val sent: List<Sent>,
        public val numExamples: Long,
        public val classCounts: List<Long>,
        public val labelDistribution: List<Double>,
        public val evaluations: Map<String, Evaluation>,
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
