package org.fedlens.sdk.store

import org.fedlens.proto.v1.Answer
import org.fedlens.proto.v1.Assignment
import org.fedlens.proto.v1.EvaluationMoment
import org.fedlens.proto.v1.LocalPlan
import org.fedlens.proto.v1.UpdateHeader
import org.fedlens.sdk.Event
import org.fedlens.sdk.StateException
import org.fedlens.sdk.UpdateFrame
import org.fedlens.sdk.store.JournalEntry.Outcome

/**
 * The result of one assignment, as sent to the server.
 *
 * @property answer Kind of answer, which selects the endpoint.
 * @property update Body of the request.
 * @property bodySha256 Digest that the receipt must repeat, 32 bytes; computed when the result was made, so that damage
 *     since then is detected.
 */
internal class Result(
    val task: Long,
    val round: Long,
    val answer: Answer,
    val update: UpdateFrame,
    val bodySha256: ByteArray,
) {
    /** The event for a delivered result. */
    fun reported(): Event.RoundReported {
        val header = update.header
        return Event.RoundReported(
            task,
            round,
            header.numExamples,
            update.size,
            start = Journal.evaluation(header, EvaluationMoment.EVALUATION_MOMENT_START),
            end = Journal.evaluation(header, EvaluationMoment.EVALUATION_MOMENT_END),
            fineTuning = Journal.evaluation(header, EvaluationMoment.EVALUATION_MOMENT_FINE_TUNED),
        )
    }
}

/**
 * The outbox: stored results that the server may not have yet.
 *
 * A result enters together with its client state and journal entry, after its tensors; it leaves when the server has
 * accepted or refused it. So a crash at any moment loses no result and repeats no training. Opening the outbox deletes
 * files without a row, which a crash may leave.
 */
internal class Outbox(
    private val state: StateFolder,
    private val files: TensorFiles,
    private val clientState: StateTensors,
    private val journal: Journal,
) {
    init {
        sweep()
    }

    /** Store a result and its client state in one transaction. */
    fun put(
        assignment: Assignment,
        header: UpdateHeader,
        upload: StoredBlob?,
        newState: Map<String, StoredBlob>,
    ): Result {
        val update = UpdateFrame(header, upload?.let { files.open(it.sha256, it.inline) })
        val result = Result(assignment.task, assignment.round, assignment.answer, update, update.digest())
        try {
            state.transaction { insert(it, assignment, result, upload, newState) }
        } catch (error: StateException) {
            // If the disk is too full for the row, its files must not stay either.
            sweep()
            throw error
        }
        return result
    }

    /** The oldest result without a receipt. */
    fun first(): Result? {
        val row =
            state.transaction { db ->
                db.query(
                    "SELECT task, round, answer, header, body_sha256, blob_sha256, blob FROM outbox " +
                        "ORDER BY place LIMIT 1",
                ) {
                    Stored(
                        it.long(0),
                        it.long(1),
                        it.long(2),
                        it.bytes(3),
                        it.bytes(4),
                        it.bytesOrNull(5),
                        it.bytesOrNull(6),
                    )
                }
            }
        return row.firstOrNull()?.let { stored ->
            val blob = stored.blobSha256?.let { files.open(it, stored.inline) }
            val answer = Answer.forNumber(stored.answer.toInt()) ?: Answer.ANSWER_UPDATE
            val update = UpdateFrame(UpdateHeader.parseFrom(stored.header), blob)
            Result(stored.task, stored.round, answer, update, stored.bodySha256)
        }
    }

    /** Remove a delivered result; its client state becomes current. */
    fun delivered(result: Result) {
        leave(result, Outcome.DELIVERED) { clientState.makeCurrent(it, result.task, result.round) }
    }

    /** Remove a refused result and drop its client state. */
    fun refused(result: Result) {
        leave(result, Outcome.REFUSED) { clientState.drop(it, result.task, result.round) }
    }

    private fun insert(
        db: Statements,
        assignment: Assignment,
        result: Result,
        upload: StoredBlob?,
        newState: Map<String, StoredBlob>,
    ) {
        db.run(
            "INSERT INTO outbox (task, round, answer, header, body_sha256, blob_sha256, blob, journal) " +
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            result.task,
            result.round,
            assignment.answerValue.toLong(),
            result.update.header.toByteArray(),
            result.bodySha256,
            upload?.sha256,
            upload?.inline,
            journal.upload(db, result.task, result.round, result.update),
        )
        clientState.put(db, result.task, result.round, newState)
        val plan = assignment.localPlan
        // Query-only plans load arbitrary weights; do not predict with them.
        if (plan.stagesCount > 0 || plan.hasEvaluation()) {
            val rules =
                LocalPlan.newBuilder().addAllStart(plan.startList).addAllExtractors(plan.extractorsList)
            clientState.putStartRules(db, result.task, rules.build())
        }
    }

    private fun leave(
        result: Result,
        outcome: Outcome,
        settle: (Statements) -> Unit,
    ) {
        state.transaction { db ->
            val entries =
                db.query(
                    "SELECT journal FROM outbox WHERE task = ? AND round = ?",
                    result.task,
                    result.round,
                ) { it.long(0) }
            settle(db)
            db.run("DELETE FROM outbox WHERE task = ? AND round = ?", result.task, result.round)
            entries.forEach { journal.ended(db, it, outcome) }
        }
        sweep()
    }

    private fun sweep() {
        val named =
            state.transaction { db ->
                db.query(
                    "SELECT blob_sha256 FROM outbox WHERE blob_sha256 NOT NULL AND blob IS NULL " +
                        "UNION SELECT blob_sha256 FROM client_state WHERE blob IS NULL",
                ) { it.bytes(0) }
            }
        files.sweep(named)
    }

    private class Stored(
        val task: Long,
        val round: Long,
        val answer: Long,
        val header: ByteArray,
        val bodySha256: ByteArray,
        val blobSha256: ByteArray?,
        val inline: ByteArray?,
    )
}
