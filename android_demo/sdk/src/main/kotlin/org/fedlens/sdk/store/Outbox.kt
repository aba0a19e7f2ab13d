package org.fedlens.sdk.store

import org.fedlens.proto.v1.Answer
import org.fedlens.proto.v1.Assignment
import org.fedlens.proto.v1.UpdateHeader
import org.fedlens.sdk.Evaluation
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
            Evaluation.of(header),
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
        uploads: List<StoredBlob>,
        keeps: Map<String, StoredBlob>,
    ): Result {
        val update = UpdateFrame(header, uploads.map { files.open(it.sha256, it.inline) })
        val result = Result(assignment.task, assignment.round, assignment.answer, update, update.digest())
        try {
            state.transaction { insert(it, assignment, result, uploads, keeps) }
        } catch (error: StateException) {
            // If the disk is too full for the row, its files must not stay either.
            sweep()
            throw error
        }
        return result
    }

    /** The oldest result without a receipt. */
    fun first(): Result? {
        val (stored, blobs) =
            state.transaction { db ->
                val row =
                    db.query("SELECT task, round, answer, header, body_sha256 FROM outbox ORDER BY place LIMIT 1") {
                        Stored(it.long(0), it.long(1), it.long(2), it.bytes(3), it.bytes(4))
                    }
                row.firstOrNull() to row.firstOrNull()?.let { blobs(db, it.task, it.round) }.orEmpty()
            }
        if (stored == null) return null
        val answer = Answer.forNumber(stored.answer.toInt()) ?: Answer.ANSWER_UPDATE
        val opened = blobs.map { (digest, inline) -> files.open(digest, inline) }
        val update = UpdateFrame(UpdateHeader.parseFrom(stored.header), opened)
        return Result(stored.task, stored.round, answer, update, stored.bodySha256)
    }

    private fun blobs(
        db: Statements,
        task: Long,
        round: Long,
    ): List<Pair<ByteArray, ByteArray?>> =
        db.query(
            "SELECT blob_sha256, blob FROM outbox_blobs WHERE task = ? AND round = ? ORDER BY position",
            task,
            round,
        ) { it.bytes(0) to it.bytesOrNull(1) }

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
        uploads: List<StoredBlob>,
        keeps: Map<String, StoredBlob>,
    ) {
        db.run(
            "INSERT INTO outbox (task, round, answer, header, body_sha256, journal) VALUES (?, ?, ?, ?, ?, ?)",
            result.task,
            result.round,
            assignment.answerValue.toLong(),
            result.update.header.toByteArray(),
            result.bodySha256,
            journal.upload(db, result.task, result.round, result.update),
        )
        for ((position, upload) in uploads.withIndex()) {
            db.run(
                "INSERT INTO outbox_blobs VALUES (?, ?, ?, ?, ?)",
                result.task,
                result.round,
                position.toLong(),
                upload.sha256,
                upload.inline,
            )
        }
        clientState.put(db, result.task, result.round, keeps)
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
            db.run("DELETE FROM outbox_blobs WHERE task = ? AND round = ?", result.task, result.round)
            entries.forEach { journal.ended(db, it, outcome) }
        }
        sweep()
    }

    private fun sweep() {
        val named =
            state.transaction { db ->
                db.query(
                    "SELECT blob_sha256 FROM outbox_blobs WHERE blob IS NULL " +
                        "UNION SELECT blob_sha256 FROM client_state WHERE blob IS NULL " +
                        "UNION SELECT blob_sha256 FROM model_state WHERE blob IS NULL",
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
    )
}
