package org.fedlens.sdk.store

import org.fedlens.proto.v1.BlobHeader
import org.fedlens.proto.v1.Capabilities
import org.fedlens.proto.v1.FailureReason
import org.fedlens.proto.v1.FailureRequest
import org.fedlens.proto.v1.UpdateHeader
import org.fedlens.sdk.AssignmentException
import org.fedlens.sdk.Evaluation
import org.fedlens.sdk.StateException
import org.fedlens.sdk.UpdateFrame
import org.fedlens.sdk.blob.TensorSpec
import org.fedlens.sdk.store.JournalEntry.Outcome
import java.io.ByteArrayInputStream
import java.io.ByteArrayOutputStream

/**
 * The log of what left this phone: every result, failure report and enrolment, kept until the client is erased. An
 * entry is on the disk before its first byte is sent.
 *
 * Methods read the disk and may be called from any thread while the client is open. Failures are a
 * [StateException].
 */
public class Journal internal constructor(
    private val state: StateFolder,
    private val nowMs: () -> Long = System::currentTimeMillis,
) {
    /** The newest [most] entries, newest first. */
    @Throws(StateException::class)
    public fun entries(most: Int = 200): List<JournalEntry> =
        state.transaction { db ->
            db.query(
                "SELECT kind, id, outcome, time_ms, bytes, task, round, message, tensors FROM journal " +
                    "ORDER BY id DESC LIMIT ?",
                most.toLong(),
                row = ::entry,
            )
        }

    /** Totals of all entries, of which [entries] gives a part. */
    @Throws(StateException::class)
    public fun totals(): Totals =
        state.transaction { db ->
            val isResult = "kind = '$UPLOAD' AND outcome IN ('${Outcome.DELIVERED}', '${Outcome.REFUSED}')"
            db
                .query(
                    "SELECT count(*), count(CASE WHEN $isResult THEN 1 END), " +
                        "coalesce(sum(CASE WHEN $isResult THEN bytes END), 0) FROM journal",
                ) { Totals(it.long(0).toInt(), it.long(1).toInt(), it.long(2)) }
                .single()
        }

    /** Record a result in the transaction that puts it into the outbox; return its id. */
    internal fun upload(
        db: Statements,
        task: Long,
        round: Long,
        update: UpdateFrame,
    ): Long {
        val sent = ByteArrayOutputStream()
        for (blob in update.blobs) BlobHeader.parseFrom(blob.layout.header).writeDelimitedTo(sent)
        return add(db, UPLOAD, task, round, update.size, update.header.toByteArray(), sent.toByteArray())
    }

    /** Record a failure report before it is sent; return its id, for [ended]. */
    internal fun failure(
        task: Long,
        round: Long,
        request: FailureRequest,
    ): Long =
        state.transaction {
            add(it, FAILURE, task, round, request.serializedSize.toLong(), request.toByteArray(), null)
        }

    /**
     * Record an enrolment before it is sent; return its id, for [ended]. The token is not stored.
     *
     * @param bytes Size of the request's body in bytes.
     */
    internal fun enrolment(
        capabilities: Capabilities,
        bytes: Long,
    ): Long = state.transaction { add(it, ENROLMENT, null, null, bytes, capabilities.toByteArray(), null) }

    /** True if the server may know this client: it has not refused every enrolment. */
    internal fun mayBeEnrolled(): Boolean =
        state
            .transaction { db ->
                val begun = "SELECT id FROM journal WHERE kind = ? AND outcome <> ? LIMIT 1"
                db.query(begun, ENROLMENT, Outcome.REFUSED.name) { it.long(0) }
            }.isNotEmpty()

    /** End waiting entries without a result in the outbox: the process ended during the request. */
    internal fun giveUpWaiting() {
        state.transaction { db ->
            db.run(
                "UPDATE journal SET outcome = ? WHERE outcome = ? AND id NOT IN (SELECT journal FROM outbox)",
                Outcome.UNKNOWN.name,
                Outcome.WAITING.name,
            )
        }
    }

    /** Record the outcome of an entry, with the current time. */
    internal fun ended(
        id: Long,
        outcome: Outcome,
    ) {
        state.transaction { ended(it, id, outcome) }
    }

    internal fun ended(
        db: Statements,
        id: Long,
        outcome: Outcome,
    ) {
        db.run("UPDATE journal SET outcome = ?, time_ms = ? WHERE id = ?", outcome.name, nowMs(), id)
    }

    private fun add(
        db: Statements,
        kind: String,
        task: Long?,
        round: Long?,
        bytes: Long,
        message: ByteArray,
        tensors: ByteArray?,
    ): Long {
        db.run(
            "INSERT INTO journal (kind, outcome, time_ms, task, round, bytes, message, tensors) " +
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            kind,
            Outcome.WAITING.name,
            nowMs(),
            task,
            round,
            bytes,
            message,
            tensors,
        )
        return db.query("SELECT last_insert_rowid()") { it.long(0) }.single()
    }

    private fun entry(row: Row): JournalEntry {
        val id = row.long(1)
        val outcome = Outcome.valueOf(row.text(2))
        val timeMs = row.long(3)
        val bytes = row.long(4)
        val message = row.bytes(7)
        return when (row.text(0)) {
            ENROLMENT ->
                Capabilities.parseFrom(message).let {
                    JournalEntry.Enrolment(id, outcome, timeMs, bytes, it.modelsList.toList(), it.tablesList.toList())
                }
            FAILURE -> {
                val request = FailureRequest.parseFrom(message)
                val reason = reason(request.reason)
                JournalEntry.Failure(id, outcome, timeMs, bytes, row.long(5), row.long(6), reason, request.detail)
            }
            else -> {
                val header = UpdateHeader.parseFrom(message)
                val sent = ByteArrayInputStream(row.bytes(8))
                JournalEntry.Upload(
                    id,
                    outcome,
                    timeMs,
                    bytes,
                    task = row.long(5),
                    round = row.long(6),
                    sent = header.uploadsList.map { sent(it.name, BlobHeader.parseDelimitedFrom(sent)) },
                    numExamples = header.numExamples,
                    classCounts = header.classCountsList.toList(),
                    labelDistribution = header.labelDistributionList.toList(),
                    evaluations = Evaluation.of(header),
                )
            }
        }
    }

    /**
     * Totals of a journal.
     *
     * @property entries Number of entries.
     * @property results Number of results that the server has responded to, whether it took them or not.
     * @property resultBytes Size of the bodies of these results in bytes.
     */
    public data class Totals(
        public val entries: Int,
        public val results: Int,
        public val resultBytes: Long,
    )

    internal companion object {
        private const val UPLOAD = "upload"
        private const val FAILURE = "failure"
        private const val ENROLMENT = "enrolment"

        /** Record that waiting entries will not be sent. */
        fun dropWaiting(db: Statements) {
            db.run("UPDATE journal SET outcome = ? WHERE outcome = ?", Outcome.DROPPED.name, Outcome.WAITING.name)
        }

        private fun sent(
            name: String,
            header: BlobHeader,
        ): JournalEntry.Sent {
            val tensors = header.tensorsList.map { TensorSpec(it.name, it.dtype, it.shapeList.toList()) }
            return JournalEntry.Sent(name, tensors, isDifference = !header.base.isEmpty)
        }

        private fun reason(reported: FailureReason): AssignmentException.Reason =
            when (reported) {
                FailureReason.FAILURE_REASON_NO_PHOTOS -> AssignmentException.Reason.NO_PHOTOS
                FailureReason.FAILURE_REASON_BUNDLE -> AssignmentException.Reason.BUNDLE
                FailureReason.FAILURE_REASON_UNSUPPORTED -> AssignmentException.Reason.UNSUPPORTED
                FailureReason.FAILURE_REASON_POLICY -> AssignmentException.Reason.POLICY
                FailureReason.FAILURE_REASON_NON_FINITE -> AssignmentException.Reason.NON_FINITE
                else -> AssignmentException.Reason.INTERNAL
            }
    }
}
