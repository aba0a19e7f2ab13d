package org.fedlens.sdk

/**
 * What a client tells its embedder, in the order in which things happen. [Embedded] and [Trained] come at most ten
 * times a second, and for the last photo and step.
 */
public sealed interface Event {
    /** The server knows this client now. */
    public data class Enrolled(
        val clientId: String,
        val role: String,
    ) : Event

    /** There is no work now: population, next_round, phase, no_task, superseded, busy or stopping. */
    public data class Waiting(
        val reason: String,
        val retryAfterMs: Long,
    ) : Event

    /** A request did not succeed and is sent again. */
    public data class Retrying(
        val reason: String,
        val delayMs: Long,
        val attempt: Int,
    ) : Event

    /** An assignment is carried out, with these photos. */
    public data class RoundStarted(
        val task: Long,
        val round: Long,
        val trainPhotos: Int,
        val testPhotos: Int,
    ) : Event

    /** Photos that this round does without, by reason. */
    public data class PhotosSkipped(
        val skipped: Map<String, List<String>>,
    ) : Event

    /** A part or a blob has been fetched and has the right digest. */
    public data class Downloaded(
        val sha256: String,
        val size: Long,
    ) : Event

    /** Photos that were embedded for the first time. */
    public data class Embedded(
        val done: Int,
        val total: Int,
    ) : Event

    /** One more step of training. */
    public data class Trained(
        val task: Long,
        val round: Long,
        val step: Long,
        val steps: Long,
        val loss: Float,
    ) : Event

    /** How an assignment, or all of them, ended. */
    public sealed interface Outcome : Event

    /** The server has the result on its disk; [uploadBytes] are those of the request's body. */
    public data class RoundReported(
        val task: Long,
        val round: Long,
        val photoCount: Long,
        val uploadBytes: Long,
        val start: Evaluation?,
        val end: Evaluation?,
        val throwAway: Evaluation?,
    ) : Outcome

    /** The assignment was given up and the server told why. */
    public data class RoundFailed(
        val task: Long,
        val round: Long,
        val reason: PassException.Reason,
        val detail: String,
    ) : Outcome

    /** The server does not take the result; it is dropped. */
    public data class RoundRefused(
        val task: Long,
        val round: Long,
        val code: String,
        val detail: String,
    ) : Outcome

    /** There will be no work any more. */
    public data object TasksFinished : Outcome
}
