package org.fedlens.jvm

import org.fedlens.sdk.ClientState
import org.fedlens.sdk.Evaluation
import org.fedlens.sdk.Event

/** An event as a JSON object on one line, with its name in `event`. */
internal fun lineOf(event: Event): String =
    when (event) {
        is Event.Enrolled -> jsonLine("event" to "enrolled", "client" to event.clientId, "role" to event.role)
        is Event.Waiting ->
            jsonLine("event" to "waiting", "reason" to event.reason, "retry_after_ms" to event.retryAfterMs)
        is Event.Retrying ->
            jsonLine(
                "event" to "retrying",
                "reason" to event.reason,
                "delay_ms" to event.delayMs,
                "attempt" to event.attempt,
            )
        is Event.RoundStarted ->
            jsonLine(
                "event" to "round_started",
                "task" to event.task,
                "round" to event.round,
                "train_photos" to event.trainPhotos,
                "test_photos" to event.testPhotos,
            )
        is Event.PhotosSkipped -> jsonLine("event" to "photos_skipped", "skipped" to event.skipped)
        is Event.Downloaded -> jsonLine("event" to "downloaded", "sha256" to event.sha256, "size" to event.size)
        is Event.Embedded -> jsonLine("event" to "embedded", "done" to event.done, "total" to event.total)
        is Event.Trained ->
            jsonLine(
                "event" to "trained",
                "task" to event.task,
                "round" to event.round,
                "step" to event.step,
                "steps" to event.steps,
                "loss" to event.loss,
            )
        is Event.ModelAdopted -> jsonLine("event" to "model_adopted", "task" to event.task)
        is Event.RoundReported ->
            jsonLine(
                "event" to "round_reported",
                "task" to event.task,
                "round" to event.round,
                "num_examples" to event.numExamples,
                "upload_bytes" to event.uploadBytes,
                "evaluations" to event.evaluations.mapValues { (_, found) -> sums(found) },
            )
        is Event.RoundFailed ->
            jsonLine(
                "event" to "round_failed",
                "task" to event.task,
                "round" to event.round,
                "reason" to event.reason.name.lowercase(),
                "detail" to event.detail,
            )
        is Event.RoundRefused ->
            jsonLine(
                "event" to "round_refused",
                "task" to event.task,
                "round" to event.round,
                "code" to event.code,
                "detail" to event.detail,
            )
        Event.TasksFinished -> jsonLine("event" to "tasks_finished")
    }

/** A state as a JSON object on one line, with its name in `state`. */
internal fun lineOf(state: ClientState): String =
    when (state) {
        ClientState.Idle -> jsonLine("state" to "idle")
        ClientState.Enrolling -> jsonLine("state" to "enrolling")
        ClientState.CheckingIn -> jsonLine("state" to "checking_in")
        is ClientState.Waiting -> jsonLine("state" to "waiting", "reason" to state.reason)
        is ClientState.Preparing ->
            jsonLine("state" to "preparing", "round" to state.round, "done" to state.done, "total" to state.total)
        is ClientState.Training ->
            jsonLine("state" to "training", "round" to state.round, "step" to state.step, "steps" to state.steps)
        is ClientState.Sending -> jsonLine("state" to "sending", "round" to state.round)
        is ClientState.Retrying -> jsonLine("state" to "retrying", "reason" to state.reason)
        is ClientState.Refused -> jsonLine("state" to "refused", "code" to state.code, "detail" to state.detail)
        is ClientState.Failed -> jsonLine("state" to "failed", "reason" to state.reason, "detail" to state.detail)
        is ClientState.Reported -> jsonLine("state" to "reported", "round" to state.round)
        ClientState.Finished -> jsonLine("state" to "finished")
    }

private fun sums(found: Evaluation): Map<String, Any?> =
    mapOf("count" to found.count, "correct" to found.correct, "loss" to found.loss)
