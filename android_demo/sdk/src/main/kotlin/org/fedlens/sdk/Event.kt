package org.fedlens.sdk

/**
 * An event that a client reports to its embedder, in order. [Embedded] and [Trained] come at most ten times a second,
 * and for the last photo and step.
 */
public sealed interface Event {
    /** The server has enrolled this client. */
    public data class Enrolled(
        val clientId: String,
        val role: String,
    ) : Event

    /**
     * There is no work now; [reason] is population, next_round, phase, no_task, superseded, busy, stopping, rest,
     * not_eligible, sits_out, paused, or not_before: an earlier run was told to wait. [detail] is the server's text
     * beside it.
     */
    public data class Waiting(
        val reason: String,
        val retryAfterMs: Long,
        val detail: String = "",
    ) : Event

    /** A request failed and will be repeated. */
    public data class Retrying(
        val reason: String,
        val delayMs: Long,
        val attempt: Int,
    ) : Event

    /** Local training for an assignment has started, with these numbers of photos. */
    public data class RoundStarted(
        val task: Long,
        val round: Long,
        val trainPhotos: Int,
        val testPhotos: Int,
    ) : Event

    /** Photos left out of this round, by reason. */
    public data class PhotosSkipped(
        val skipped: Map<String, List<String>>,
    ) : Event

    /** A part or blob has been fetched and verified. */
    public data class Downloaded(
        val sha256: String,
        val size: Long,
    ) : Event

    /** Progress of embedding new photos. */
    public data class Embedded(
        val done: Int,
        val total: Int,
    ) : Event

    /** A training step is done. */
    public data class Trained(
        val task: Long,
        val round: Long,
        val step: Long,
        val steps: Long,
        val loss: Float,
    ) : Event

    /** Another model of this task predicts from now on; `FedLensClient.models` describes it. */
    public data class ModelAdopted(
        val task: Long,
    ) : Event

    /** The end of an assignment, or of all tasks. */
    public sealed interface Outcome : Event

    /**
     * The server has stored the result; [uploadBytes] is the size of the request's body, [evaluations] are by label, in
     * the local plan's order.
     */
    public data class RoundReported(
        val task: Long,
        val round: Long,
        val numExamples: Long,
        val uploadBytes: Long,
        val evaluations: Map<String, Evaluation>,
    ) : Outcome

    /** The client gave up the assignment and told the server why. */
    public data class RoundFailed(
        val task: Long,
        val round: Long,
        val reason: AssignmentException.Reason,
        val detail: String,
    ) : Outcome

    /** The server refused the result, which is dropped. */
    public data class RoundRefused(
        val task: Long,
        val round: Long,
        val code: String,
        val detail: String,
    ) : Outcome

    /** Every task has ended. */
    public data object TasksFinished : Outcome
}
