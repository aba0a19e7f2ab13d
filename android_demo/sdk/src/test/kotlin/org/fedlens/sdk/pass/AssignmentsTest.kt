package org.fedlens.sdk.pass

import com.google.protobuf.ByteString
import kotlinx.coroutines.CancellationException
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.async
import kotlinx.coroutines.runBlocking
import org.fedlens.proto.v1.Answer
import org.fedlens.proto.v1.Codec
import org.fedlens.proto.v1.EvaluationMoment
import org.fedlens.proto.v1.EvaluationPlan
import org.fedlens.proto.v1.HyperValue
import org.fedlens.proto.v1.Keep
import org.fedlens.proto.v1.LocalPlan
import org.fedlens.proto.v1.ReferenceBinding
import org.fedlens.sdk.EngineException
import org.fedlens.sdk.Event
import org.fedlens.sdk.PassException
import org.fedlens.sdk.PassException.Reason
import org.fedlens.sdk.Policy
import org.fedlens.sdk.blob.BlobWriter
import org.fedlens.sdk.blob.FloatTensor
import org.fedlens.sdk.blob.Tensor
import org.fedlens.sdk.engine.Rows
import org.fedlens.sdk.sha256
import org.fedlens.sdk.store.Result
import org.fedlens.sdk.toHex
import org.junit.Assert.assertArrayEquals
import org.junit.Assert.assertEquals
import org.junit.Assert.assertNull
import org.junit.Assert.assertThrows
import org.junit.Assert.assertTrue
import org.junit.Test
import java.io.ByteArrayOutputStream
import java.util.concurrent.CountDownLatch
import kotlin.math.ln

internal class AssignmentsTest : Offices() {
    @Test
    fun `an assignment becomes a result in the outbox, and events tell how`() {
        val office = office()
        val result = office.carryOut(wholePlan { addStatistics(CLASS_COUNTS) })
        val header = result.update.header
        assertEquals(16L, header.numExamples)
        assertEquals(listOf(8L, 8L), header.classCountsList)
        assertEquals(ByteString.copyFrom(office.bundle.id), header.bundle)
        assertEquals(listOf(8f, 8f), uploaded(result).floats("fc.bias"))
        val (start, end) = header.evaluationsList
        assertEquals(
            EvaluationMoment.EVALUATION_MOMENT_START to EvaluationMoment.EVALUATION_MOMENT_END,
            start.moment to end.moment,
        )
        assertEquals(4 * ln(2.0), start.loss, 1e-12)
        assertEquals(4L to 4L, end.count to end.correct)
        val waiting = checkNotNull(office.outbox.first())
        assertArrayEquals(result.bodySha256, waiting.bodySha256)
        assertArrayEquals(waiting.update.digest(), waiting.bodySha256)
        assertEquals(Event.RoundStarted(7, 1, 16, 4), office.events<Event.RoundStarted>().single())
        // The clock stands still: the first and the last of each are told.
        assertEquals(listOf(1, 20), office.events<Event.Embedded>().map { it.done })
        assertEquals(listOf(4L to 4L), office.events<Event.Trained>().map { it.step to it.steps })
        val order = office.events.map { it::class.simpleName }.distinct()
        assertEquals(listOf("Downloaded", "Embedded", "RoundStarted", "Trained"), order)
    }

    @Test
    fun `progress is told ten times a second at most`() {
        val bundle = SummingBundle(batch = 1)
        val office =
            office(bundle) { opened ->
                object : SummingEngine(opened) {
                    override fun embed(photo: FloatArray): FloatArray {
                        offices[0].nanoTime += 30_000_000
                        return super.embed(photo)
                    }
                }
            }
        office.carryOut(wholePlan())
        // 30 ms a photo: the first one, then every fourth, and the last.
        assertEquals(listOf(1, 5, 9, 13, 17, 20), office.events<Event.Embedded>().map { it.done })
    }

    @Test
    fun `the same assignment and photos give the same bytes on any client`() {
        val bodies = (1..2).map { office().carryOut(wholePlan(3)).bodySha256.toList() }
        assertEquals(bodies[0], bodies[1])
    }

    @Test
    fun `an upload is stored by its codec, or as difference to a set`() {
        val base = encoded(100f)
        for ((codec, name) in listOf(
            Codec.CODEC_FLOAT16 to "",
            Codec.CODEC_FLOAT32 to "base",
            Codec.CODEC_INT8 to "base",
        )) {
            val office = office()
            office.put("base", base)
            val result = office.carryOut(wholePlan { sending { setCodec(codec).setBaseSet(name) } })
            val blob = checkNotNull(result.update.blob)
            assertArrayEquals(if (name.isEmpty()) null else sha256(base), blob.layout.base)
            val floats = checkNotNull(BlobWriter.floatsOf(codec))
            assertEquals(floats, blob.layout.specs.single { it.name == "fc.weight" }.dtype)
            assertEquals(listOf(8f, 8f).map { if (name.isEmpty()) it else it - 100 }, blob.tensors.floats("fc.bias"))
        }
    }

    @Test
    fun `large tensors are files, and a base without a tensor is named`() {
        val wide = SummingBundle(features = 20_000)
        val office = office(wide)
        office.put("global", encoded(0f, width = 20_000))
        office.put("base", BlobWriter.encode(filled(1f, 20_000) - "fc.bias"))
        val result = office.carryOut(wholePlan { addKeep(Keep.newBuilder().setSet("mine")) })
        // Kept and uploaded tensors are the same here, so they share a file.
        assertEquals(listOf(office.hex(result.update.header.blobSha256)), office.state.tensorFolder.list()?.toList())
        val unfit = office.refusal(wholePlan { sending { baseSet = "base" } })
        assertEquals("set 'base', the base of the upload, lacks 'fc.bias'", unfit.message)
    }

    @Test
    fun `what is not finite is not stored`() {
        val large = HyperValue.newBuilder().setName("lr").setValue(70_000.0)
        val plan =
            wholePlan { sending { codec = Codec.CODEC_FLOAT16 } }.toBuilder().setStages(
                0,
                stage().addHyperValues(large),
            )
        val office = office()
        assertEquals(Reason.NON_FINITE, office.refusal(plan.build()).reason)
        assertNull(office.outbox.first())
    }

    @Test
    fun `a noisy answer is kept, and exact ones are refused after it`() {
        val office = office()
        val asking = wholePlan { clearStages().clearUpload().clearEvaluation().addStatistics(labelDistribution(1.0)) }
        val told = (1L..2).map { office.carryOut(asking, round = it).update.header }
        assertEquals(2, told[0].labelDistributionCount)
        assertEquals(told[0].labelDistributionList, told[1].labelDistributionList)
        assertEquals(16L to 0, told[0].numExamples to told[0].classCountsCount)
        for ((ask, what) in listOf(CLASS_COUNTS to "class counts", CONFUSION to "confusion matrices")) {
            val error = office.refusal(wholePlan { addStatistics(ask) })
            assertEquals(Reason.POLICY, error.reason)
            assertEquals(
                "this client's policy: $what are not answered to a server that has a label distribution of the same " +
                    "classes, whose noise they would undo",
                error.message,
            )
        }
        office.policy = Policy(answerExactlyAfterNoise = true)
        assertEquals(
            listOf(8L, 8L),
            office.carryOut(wholePlan { addStatistics(CLASS_COUNTS) }, 3).update.header.classCountsList,
        )
    }

    @Test
    fun `an evaluator evaluates all its photos and trains on none`() {
        val office = office()
        val plan = wholePlan { clearStages().clearUpload().setEvaluation(EvaluationPlan.newBuilder().setAtStart(true)) }
        val assignment = office.assignment(plan, answer = Answer.ANSWER_EVALUATION)
        val result = runBlocking { office.assignments.carryOut(assignment, onlyTest = true) }
        assertEquals(Answer.ANSWER_EVALUATION, result.answer)
        assertEquals(0L to 20L, result.update.header.numExamples to result.update.header.getEvaluations(0).count)
        assertNull(result.update.blob)
    }

    @Test
    fun `an album without photos of the model's classes gives the round up, and skipped ones are told`() {
        val office = office()
        office.album.add("horse", 1)
        office.carryOut(wholePlan())
        assertEquals(
            mapOf("class 'horse' is not in the model" to listOf("horse/0.bmp")),
            office.events<Event.PhotosSkipped>().single().skipped,
        )
        val empty = Office(folder.newFolder()).also { offices += it }
        empty.put("global", encoded(0f))
        assertEquals(Reason.NO_PHOTOS, empty.refusal(wholePlan()).reason)
    }

    @Test
    fun `a cancelled training ends between two steps, leaves nothing, and the next one works`() {
        val training = CountDownLatch(1)
        val cancelled = CountDownLatch(1)
        val steps = ArrayList<Float>()
        val office =
            office { opened ->
                object : SummingEngine(opened) {
                    override fun train(
                        program: String,
                        weights: Map<String, Tensor>,
                        rows: Rows,
                        batches: Sequence<IntArray>,
                        hyper: Map<String, Double>,
                        references: Map<String, Map<String, Tensor>>,
                        onStep: (Float) -> Unit,
                    ) = super.train(program, weights, rows, batches, hyper, references) { loss ->
                        if (steps.size == 1) {
                            training.countDown()
                            cancelled.await()
                        }
                        steps += loss
                        onStep(loss)
                    }
                }
            }
        runBlocking(Dispatchers.Default) {
            val job = async { office.assignments.carryOut(office.assignment(wholePlan(5)), onlyTest = false) }
            training.await()
            job.cancel()
            cancelled.countDown()
            assertTrue(runCatching { job.await() }.exceptionOrNull() is CancellationException)
        }
        assertEquals(2, steps.size)
        assertNull(office.outbox.first())
        office.carryOut(wholePlan())
        assertEquals(1L, checkNotNull(office.outbox.first()).round)
    }

    @Test
    fun `a prediction uses what the next pass would start from`() {
        val office = office()
        val photo = office.album.photos().photos.first { it.label == "cat" }.file
        assertEquals(
            mapOf("cat" to 0.5, "dog" to 0.5),
            runBlocking { office.assignments.predict(office.model(), photo) },
        )
        office.outbox.delivered(office.carryOut(keeping("initial")))
        val predicted = runBlocking { office.assignments.predict(office.model(), photo) }
        assertEquals(listOf("cat", "dog"), predicted.keys.toList())
        assertEquals(1.0, predicted.values.sum(), 1e-12)
        assertTrue(predicted.getValue("cat") > 0.9)
        // Of another phase: the downloads count, as start rules do not name what is there.
        val next = wholePlan { setStart(0, from("global")) }
        office.outbox.delivered(office.carryOut(next, round = 2))
        office.sets.clear()
        office.put("personal", encoded(0f))
        assertEquals(0.5, runBlocking { office.assignments.predict(office.model(), photo) }.getValue("cat"), 0.0)
    }

    @Test
    fun `before the first pass a prediction takes each tensor from a set that has it`() {
        val office = office()
        val photo = office.album.photos().photos.first { it.label == "cat" }.file
        val sure = FloatTensor.of(listOf(2), floatArrayOf(80f, 0f))
        office.sets.clear()
        office.put("initial", encoded(0f))
        office.put("some", BlobWriter.encode(mapOf("fc.bias" to sure)))
        val predicted = runBlocking { office.assignments.predict(office.model(), photo) }
        // With the bias of the initial weights it would be 1/2.
        assertEquals(1.0, predicted.getValue("cat"), 1e-12)
        office.sets.remove("initial")
        val lacking =
            assertThrows(PassException::class.java) {
                runBlocking { office.assignments.predict(office.model(), photo) }
            }
        assertEquals("no start rule selects tensor 'fc.weight' of the bundle", lacking.message)
    }

    @Test
    fun `a bundle that is not pinned is not even fetched, whatever it is wanted for`() {
        val office = office()
        val photo = office.album.photos().photos.first().file
        office.policy = Policy(bundles = setOf("00"))
        val uses: List<suspend () -> Any> =
            listOf(
                { office.assignments.carryOut(office.assignment(wholePlan()), onlyTest = false) },
                { office.assignments.predict(office.model(), photo) },
                { office.assignments.embedNew(office.bundle.id, onlyTest = false) },
                { office.assignments.classNames(office.bundle.id) },
            )
        for (use in uses) {
            val error = assertThrows(PassException::class.java) { runBlocking { use() } }
            val bundle = office.bundle.id.toHex()
            assertEquals("this client's policy: bundle $bundle is not among the pinned ones", error.message)
        }
        assertEquals(emptyList<ByteString>(), office.shelf.fetched)
        office.policy = Policy()
        office.carryOut(wholePlan())
        office.policy = Policy(bundles = setOf("00"))
        assertThrows(PassException::class.java) { runBlocking { uses[1]() } }
    }

    @Test
    fun `a concatenated model stands on its extractors, in rounds and in predictions`() {
        val office = office(SummingBundle(concatenated = 2))
        office.put("global", encoded(0f, width = 4))
        office.put("first", BlobWriter.encode(extractor(1f, 0f, 0f, 0f, 1f, 0f)))
        val plan = wholePlan { addExtractors("first").addExtractors("absent") }
        val first = office.carryOut(plan)
        val weights = uploaded(first).floats("fc.weight")
        // Eight red cats give 1 to the first column; whose extractor is absent has zeros.
        assertEquals(8f, weights[0], 0f)
        assertEquals(List(2) { 0f }, weights.subList(2, 4))
        val batches = office.engines[0].extracted
        office.outbox.delivered(first)
        office.carryOut(plan, round = 2)
        assertEquals(batches, office.engines[0].extracted)
        val photo = office.album.photos().photos.first { it.label == "cat" }.file
        office.put("global", uploadedBytes(first))
        val predicted = runBlocking { office.assignments.predict(office.model(), photo) }
        assertTrue(predicted.getValue("cat") > 0.9)
        val lacking = LocalPlan.newBuilder().addStart(from("global")).build()
        assertEquals(Reason.UNSUPPORTED, office.refusal(lacking).reason)
    }

    @Test
    fun `photos are embedded when they arrive, and the names of the classes are told`() {
        val office = office()
        val id = office.bundle.id
        assertEquals(listOf("cat", "dog"), runBlocking { office.assignments.classNames(id) })
        assertEquals(20, runBlocking { office.assignments.embedNew(id, onlyTest = false) })
        office.album.add("cat", 1, first = 30)
        assertEquals(1, runBlocking { office.assignments.embedNew(id, onlyTest = false) })
        val embedded = office.engines[0].embedded
        office.carryOut(wholePlan())
        assertEquals(embedded, office.engines[0].embedded)
    }

    @Test
    fun `an engine that cannot be made is tried again`() {
        var tries = 0
        val office =
            office { opened ->
                tries++
                if (tries ==
                    1
                ) {
                    throw EngineException(EngineException.Reason.BUNDLE_UNUSABLE, "damaged")
                } else {
                    SummingEngine(opened)
                }
            }
        assertThrows(EngineException::class.java) { office.carryOut(wholePlan()) }
        office.carryOut(wholePlan())
        assertEquals(2, tries)
    }

    @Test
    fun `a reference is bound to what the pass starts from`() {
        val office = office(SummingBundle(withReference = true))
        val binding = ReferenceBinding.newBuilder().setName("global").setStart(true)
        val pull = HyperValue.newBuilder().setName("mu").setValue(1.0)
        val result =
            office.carryOut(wholePlan { addReferences(binding).setStages(0, stage().addHyperValues(pull)) })
        // With mu = 1 each step ends where the pass began.
        assertEquals(listOf(0f, 0f), uploaded(result).floats("fc.bias"))
    }

    private fun extractor(vararg values: Float): Map<String, Tensor> =
        mapOf("base.weight" to FloatTensor.of(listOf(2, 3), values))

    private fun uploadedBytes(result: Result): ByteArray =
        ByteArrayOutputStream().also { checkNotNull(result.update.blob).writeTo(it) }.toByteArray()
}
