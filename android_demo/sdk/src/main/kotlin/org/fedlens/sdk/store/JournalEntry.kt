package org.fedlens.sdk.store

import org.fedlens.sdk.Evaluation
import org.fedlens.sdk.PassException
import org.fedlens.sdk.blob.TensorSpec

/**
 * Something that left this phone, or is about to.
 *
 * @property id Grows with every entry.
 * @property outcome What is known of its arrival.
 * @property timeMs When it arrived or was refused, milliseconds since 1970; while it waits, when it was made.
 * @property bytes Of the request's body.
 */
public sealed interface JournalEntry {
    public val id: Long
    public val outcome: Outcome
    public val timeMs: Long
    public val bytes: Long

    /** What is known of a request's arrival. */
    public enum class Outcome {
        /** The server has not said yet that it has it. Part of it may have left. */
        WAITING,

        /** The server has it. */
        DELIVERED,

        /** The server did not take it. */
        REFUSED,

        /** It is not sent any more: the server no longer knew this client. */
        DROPPED,

        /** It may have arrived: the request was given up, or the process ended, before the server had answered. */
        UNKNOWN,
    }

    /**
     * This phone made itself known.
     *
     * @property models Names of the models that it asked to train; empty: any.
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
     * @property tensors Trained tensors that were sent, by name, type and shape; empty: none.
     * @property isDifference Whether they are what is to be added to the model that was downloaded, instead of weights.
     * @property photoCount How many photos were trained on.
     * @property classCounts Photos of each class, in label order; empty: not told.
     * @property labelDistribution Noisy share of each class, in label order; empty: not told.
     * @property start How well the model did on photos kept aside before training; null: not told.
     * @property end After training; null: not told.
     * @property throwAway After a training that was thrown away; null: not told.
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
        public val photoCount: Long,
        public val classCounts: List<Long>,
        public val labelDistribution: List<Double>,
        public val start: Evaluation?,
        public val end: Evaluation?,
        public val throwAway: Evaluation?,
    ) : JournalEntry

    /**
     * That a round was given up.
     *
     * @property reason As the server was told.
     * @property detail As the server was told.
     */
    public class Failure internal constructor(
        override val id: Long,
        override val outcome: Outcome,
        override val timeMs: Long,
        override val bytes: Long,
        public val task: Long,
        public val round: Long,
        public val reason: PassException.Reason,
        public val detail: String,
    ) : JournalEntry
}
