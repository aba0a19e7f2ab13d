package org.fedlens.sdk.store

import org.fedlens.jvm.JdbcDatabase
import org.fedlens.proto.v1.Answer
import org.fedlens.proto.v1.Capabilities
import org.fedlens.proto.v1.EvaluationSums
import org.fedlens.proto.v1.FailureReason
import org.fedlens.proto.v1.FailureRequest
import org.fedlens.sdk.AssignmentException
import org.fedlens.sdk.BlobException
import org.fedlens.sdk.StateException.Reason
import org.fedlens.sdk.blob.FloatTensor
import org.fedlens.sdk.blob.TensorSpec
import org.fedlens.sdk.store.JournalEntry.Outcome
import org.junit.After
import org.junit.Assert.assertArrayEquals
import org.junit.Assert.assertEquals
import org.junit.Assert.assertFalse
import org.junit.Assert.assertNull
import org.junit.Assert.assertThrows
import org.junit.Assert.assertTrue
import org.junit.Before
import org.junit.Rule
import org.junit.Test
import org.junit.rules.TemporaryFolder
import java.io.ByteArrayOutputStream
import java.io.IOException

class OutboxTest {
    @get:Rule
    val folder = TemporaryFolder()

    private lateinit var stores: Stores

    @Before
    fun open() {
        stores = Stores(folder.root) { JdbcDatabase.open(it) }
    }

    @After
    fun close() {
        stores.close()
    }

    private fun reopen() {
        close()
        open()
    }

    private fun tensorFiles() = checkNotNull(stores.state.tensorFolder.list()).toList()

    @Test
    fun `results leave in the order in which they came`() {
        for ((task, round) in listOf(2L to 1L, 1L to 9L)) {
            stores.outbox.put(assignment(round, task), header(), emptyList(), emptyMap())
        }
        val order = List(2) { checkNotNull(stores.outbox.first()).also(stores.outbox::delivered).task }
        assertEquals(listOf(2L, 1L), order)
        assertNull(stores.outbox.first())
    }

    @Test
    fun `a result is the same bytes after the folder was opened again, inline and as a file`() {
        for (count in listOf(3, 20_000)) {
            val uploads = listOf(4, 5).map { stores.files.store(tensors(it, count), Stores.F32) }
            val put = stores.outbox.put(assignment(count.toLong()), header(uploads), uploads, emptyMap())
            reopen()
            val found = checkNotNull(stores.outbox.first())
            assertArrayEquals(body(put), body(found))
            assertArrayEquals(put.bodySha256, found.bodySha256)
            assertArrayEquals(put.bodySha256, found.update.digest())
            assertEquals(Answer.ANSWER_UPDATE, found.answer)
            assertEquals(if (count == 3) 0 else 2, tensorFiles().size)
            stores.outbox.delivered(found)
            assertEquals(emptyList<String>(), tensorFiles())
        }
    }

    private fun body(result: Result) = ByteArrayOutputStream().also(result.update::writeTo).toByteArray()

    @Test
    fun `a result of a round is put once`() {
        stores.outbox.put(assignment(1), header(), emptyList(), emptyMap())
        assertReason(Reason.DAMAGED) { stores.outbox.put(assignment(1), header(), emptyList(), emptyMap()) }
        assertEquals(1, stores.journal.entries().size)
    }

    @Test
    fun `files that no row names are deleted when the folder is opened`() {
        stores.files.store(tensors(1, 20_000), Stores.F32)
        val named = stores.files.store(tensors(2, 20_000), Stores.F32)
        stores.outbox.put(assignment(1), header(), emptyList(), mapOf("mine" to named))
        reopen()
        assertEquals(listOf(stores.files.file(named.sha256).name), tensorFiles())
        assertNull(stores.clientState.current(TASK, "mine"))
    }

    @Test
    fun `a refused result leaves the earlier client state current in all its sets`() {
        // A set in a row and one in a file, which both results keep; and one that only the refused result keeps.
        for (round in 1..2) {
            val sets = mapOf("mine" to 3, "large" to 20_000) + if (round == 2) mapOf("new" to 3) else emptyMap()
            val newState = sets.mapValues { (_, count) -> stores.files.store(tensors(round, count), Stores.F32) }
            stores.outbox.put(assignment(round.toLong()), header(), emptyList(), newState)
        }
        stores.run(Step.Deliver)
        stores.run(Step.Refuse)
        val current = listOf("mine", "large", "new").map { stores.clientState.current(TASK, it)?.firstValue() }
        assertEquals(listOf(1, 1, null), current)
        assertEquals(1, tensorFiles().size)
        assertNull(stores.clientState.current(TASK + 1, "mine"))
    }

    @Test
    fun `stored tensors that are gone are named`() {
        stores.run(Step.Put(1, 1, upload = false, state = true, large = true))
        stores.run(Step.Deliver)
        stores.state.tensorFolder.listFiles()?.forEach { it.delete() }
        val message = assertReason(Reason.DAMAGED) { stores.clientState.current(TASK, "mine") }
        assertTrue(message, "the state folder is damaged" in message)
    }

    @Test
    fun `a full disk is named, and neither rows nor files of the result stay`() {
        val uploads = listOf(stores.files.store(tensors(1, 20_000), Stores.F32))
        stores.state.transaction { db ->
            val pages = db.query("PRAGMA page_count") { it.long(0) }.single()
            db.query("PRAGMA max_page_count = $pages") { it.long(0) }
        }
        val newState = mapOf("mine" to stores.files.store(tensors(2, 12_000), Stores.F32))
        assertReason(Reason.NOT_WRITABLE) { stores.outbox.put(assignment(1), header(uploads), uploads, newState) }
        stores.state.transaction { db -> db.query("PRAGMA max_page_count = 1000000") { it.long(0) } }
        assertNull(stores.outbox.first())
        assertEquals(0, stores.journal.entries().size)
        assertEquals(emptyList<String>(), tensorFiles())
    }

    @Test
    fun `tensors for which there is no room are named and leave nothing`() {
        val message =
            assertReason(Reason.NOT_WRITABLE) {
                val failing =
                    object : FloatTensor {
                        override val shape = listOf(20_000L)

                        override fun read(
                            from: Long,
                            into: FloatArray,
                            at: Int,
                            count: Int,
                        ) {
                            if (from > 10_000) throw IOException("No space left on device")
                        }
                    }
                stores.files.store(mapOf("w" to failing), Stores.F32)
            }
        assertTrue(message, "No space left on device" in message)
        assertEquals(emptyList<String>(), tensorFiles())
    }

    @Test
    fun `the journal lists what left this phone, newest first, with the time of its arrival`() {
        var now = 1000L
        val journal = Journal(stores.state) { now }
        val outbox = Outbox(stores.state, stores.files, stores.clientState, journal)
        val enrolled = journal.enrolment(Capabilities.newBuilder().addModels("net").addTables("means").build(), 99)
        journal.ended(enrolled, Outcome.DELIVERED)
        val difference = stores.files.store(tensors(1), Stores.F32, base = ByteArray(32))
        val uploads = listOf(difference, stores.files.store(tensors(2), Stores.F32))
        val header =
            header(uploads)
                .toBuilder()
                .setNumExamples(5)
                .addClassCounts(2)
                .addClassCounts(3)
                .addLabelDistribution(0.5)
                .addEvaluations(sums("start", 1))
                .addEvaluations(sums("trained", 4))
                .build()
        val result = outbox.put(assignment(3), header, uploads, emptyMap())
        val request =
            FailureRequest.newBuilder().setReason(FailureReason.FAILURE_REASON_POLICY).setDetail("no").build()
        journal.failure(TASK, 4, request)
        now = 2000
        outbox.delivered(result)

        val (failure, sent, enrolment) = journal.entries()
        failure as JournalEntry.Failure
        sent as JournalEntry.Upload
        enrolment as JournalEntry.Enrolment
        assertEquals(listOf(1000L, 2000L, 1000L), listOf(failure, sent, enrolment).map { it.timeMs })
        val outcomes = listOf(failure, sent, enrolment).map { it.outcome }
        assertEquals(listOf(Outcome.WAITING, Outcome.DELIVERED, Outcome.DELIVERED), outcomes)
        assertEquals(AssignmentException.Reason.POLICY to "no", failure.reason to failure.detail)
        assertEquals(listOf("net") to listOf("means"), enrolment.models to enrolment.tables)
        assertEquals(99L, enrolment.bytes)
        assertEquals(result.update.size, sent.bytes)
        assertEquals(TASK to 3L, sent.task to sent.round)
        val spec = TensorSpec("w", Stores.F32, listOf(3L))
        assertEquals(
            listOf(Triple("upload-0", listOf(spec), true), Triple("upload-1", listOf(spec), false)),
            sent.sent.map { Triple(it.name, it.tensors, it.isDifference) },
        )
        assertEquals(5L, sent.numExamples)
        assertEquals(listOf(2L, 3L), sent.classCounts)
        assertEquals(listOf(0.5), sent.labelDistribution)
        assertEquals(listOf("start" to 1L, "trained" to 4L), sent.evaluations.map { it.key to it.value.correct })
        assertEquals(listOf(failure.id), journal.entries(most = 1).map { it.id })
        assertEquals(Journal.Totals(entries = 3, results = 1, resultBytes = sent.bytes), journal.totals())
    }

    @Test
    fun `the event for a delivered result has what its header holds`() {
        val header =
            header()
                .toBuilder()
                .setNumExamples(5)
                .addEvaluations(sums("fine_tuned", 2))
                .build()
        val event = stores.outbox.put(assignment(3), header, emptyList(), emptyMap()).reported()
        assertEquals(listOf(TASK, 3L, 5L), listOf(event.task, event.round, event.numExamples))
        assertEquals(listOf("fine_tuned" to 2L), event.evaluations.map { it.key to it.value.correct })
        assertEquals(4L + header.serializedSize, event.uploadBytes)
    }

    @Test
    fun `tensors that no blob can hold leave nothing`() {
        assertThrows(BlobException::class.java) {
            val broken = FloatTensor.of(listOf(20_000L), FloatArray(20_000) { Float.NaN })
            stores.files.store(mapOf("w" to broken), Stores.F32)
        }
        assertFalse(tensorFiles().isNotEmpty())
    }

    private fun sums(
        label: String,
        correct: Long,
    ): EvaluationSums =
        EvaluationSums
            .newBuilder()
            .setLabel(label)
            .setCount(9)
            .setCorrect(correct)
            .build()
}
