package org.fedlens.sdk.training

import com.google.protobuf.ByteString
import kotlinx.coroutines.CancellationException
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.async
import kotlinx.coroutines.runBlocking
import org.fedlens.proto.v1.Answer
import org.fedlens.proto.v1.Binding
import org.fedlens.proto.v1.Codec
import org.fedlens.proto.v1.HyperValue
import org.fedlens.proto.v1.Keep
import org.fedlens.sdk.AssignmentException
import org.fedlens.sdk.AssignmentException.Reason
import org.fedlens.sdk.EngineException
import org.fedlens.sdk.Event
import org.fedlens.sdk.Policy
import org.fedlens.sdk.blob.BlobWriter
import org.fedlens.sdk.blob.FloatTensor
import org.fedlens.sdk.blob.Tensor
import org.fedlens.sdk.engine.Rows
import org.fedlens.sdk.engine.Uniforms
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

internal class AssignmentsTest : TestClients() {
    @Test
    fun `an assignment becomes a result in the outbox, and events report it`() {
        val client = client()
        val result = client.carryOut(wholePlan { addStatistics(CLASS_COUNTS) })
        val header = result.update.header
        assertEquals(16L, header.numExamples)
        assertEquals(listOf(8L, 8L), header.classCountsList)
        assertEquals(ByteString.copyFrom(client.bundle.id), header.bundle)
        assertEquals(listOf(8f, 8f), uploaded(result).floats("fc.bias"))
        val (start, end) = header.evaluationsList
        assertEquals("start" to "trained", start.label to end.label)
        assertEquals(4 * ln(2.0), start.loss, 1e-12)
        assertEquals(4L to 4L, end.count to end.correct)
        val waiting = checkNotNull(client.outbox.first())
        assertArrayEquals(result.bodySha256, waiting.bodySha256)
        assertArrayEquals(waiting.update.digest(), waiting.bodySha256)
        assertEquals(Event.RoundStarted(7, 1, 16, 4), client.events<Event.RoundStarted>().single())
        // The clock stands still: the first and the last of each are reported.
        assertEquals(listOf(1, 20), client.events<Event.Embedded>().map { it.done })
        assertEquals(listOf(4L to 4L), client.events<Event.Trained>().map { it.step to it.steps })
        val order = client.events.map { it::class.simpleName }.distinct()
        assertEquals(listOf("Downloaded", "Embedded", "RoundStarted", "Trained"), order)
    }

    @Test
    fun `progress is reported ten times a second at most`() {
        val bundle = SummingBundle(batch = 1)
        val client =
            client(bundle) { opened ->
                object : SummingEngine(opened) {
                    override fun embed(photo: FloatArray): FloatArray {
                        clients[0].nanoTime += 30_000_000
                        return super.embed(photo)
                    }
                }
            }
        client.carryOut(wholePlan())
        // 30 ms a photo: the first one, then every fourth, and the last.
        assertEquals(listOf(1, 5, 9, 13, 17, 20), client.events<Event.Embedded>().map { it.done })
    }

    @Test
    fun `the same assignment and photos give the same bytes on any client`() {
        val bodies = (1..2).map { client().carryOut(wholePlan(3)).bodySha256.toList() }
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
            val client = client()
            client.put("base", base)
            val result = client.carryOut(wholePlan { sending { setCodec(codec).setBase(name) } })
            val blob = result.update.blobs.single()
            assertArrayEquals(if (name.isEmpty()) null else sha256(base), blob.layout.base)
            val floats = checkNotNull(BlobWriter.floatsOf(codec))
            assertEquals(floats, blob.layout.specs.single { it.name == "fc.weight" }.dtype)
            assertEquals(listOf(8f, 8f).map { if (name.isEmpty()) it else it - 100 }, blob.tensors.floats("fc.bias"))
        }
    }

    @Test
    fun `large tensors are files, and a base without a tensor is named`() {
        val wide = SummingBundle(features = 20_000)
        val client = client(wide)
        client.put("global", encoded(0f, width = 20_000))
        client.put("base", BlobWriter.encode(filled(1f, 20_000) - "fc.bias"))
        val result = client.carryOut(wholePlan { addKeeps(Keep.newBuilder().setState("mine").setValue("trained")) })
        // Kept and uploaded tensors are the same here, so they share a file.
        val uploaded = client.hex(result.update.header.getUploads(0).sha256)
        assertEquals(listOf(uploaded), client.state.tensorFolder.list()?.toList())
        val unfit = client.refusal(wholePlan { sending { base = "base" } })
        assertEquals("set 'base', the base of the upload, lacks 'fc.bias'", unfit.message)
    }

    @Test
    fun `what is not finite is not stored`() {
        val large = HyperValue.newBuilder().setName("lr").setValue(70_000.0)
        val plan =
            wholePlan {
                sending { codec = Codec.CODEC_FLOAT16 }
                training { addHyperValues(large) }
            }
        val client = client()
        assertEquals(Reason.NON_FINITE, client.refusal(plan).reason)
        assertNull(client.outbox.first())
    }

    @Test
    fun `a noisy answer is stored, and exact ones are refused after it`() {
        val client = client()
        val plan = countingPlan(labelDistribution(1.0))
        val headers = (1L..2).map { client.carryOut(plan, round = it).update.header }
        assertEquals(2, headers[0].labelDistributionCount)
        assertEquals(headers[0].labelDistributionList, headers[1].labelDistributionList)
        assertEquals(16L to 0, headers[0].numExamples to headers[0].classCountsCount)
        for ((statistic, what) in listOf(CLASS_COUNTS to "class counts", CONFUSION to "confusion matrices")) {
            val error = client.refusal(wholePlan { addStatistics(statistic) })
            assertEquals(Reason.POLICY, error.reason)
            assertEquals(
                "this client's policy: $what are not answered to a server that has a label distribution of the same " +
                    "classes, whose noise they would undo",
                error.message,
            )
        }
        client.policy = Policy(answerExactlyAfterNoise = true)
        assertEquals(
            listOf(8L, 8L),
            client.carryOut(wholePlan { addStatistics(CLASS_COUNTS) }, 3).update.header.classCountsList,
        )
    }

    @Test
    fun `an evaluator evaluates all its photos and trains on none`() {
        val client = client()
        val assignment = client.assignment(evaluatingPlan(), answer = Answer.ANSWER_EVALUATION)
        val result = runBlocking { client.assignments.carryOut(assignment, onlyTest = true) }
        assertEquals(Answer.ANSWER_EVALUATION, result.answer)
        assertEquals(0L to 20L, result.update.header.numExamples to result.update.header.getEvaluations(0).count)
        assertEquals(0, result.update.blobs.size)
    }

    @Test
    fun `an album without photos of the model's classes gives the round up, and skipped ones are reported`() {
        val client = client()
        client.album.add("horse", 1)
        client.carryOut(wholePlan())
        assertEquals(
            mapOf("class 'horse' is not in the model" to listOf("horse/0.bmp")),
            client.events<Event.PhotosSkipped>().single().skipped,
        )
        val empty = TestClient(folder.newFolder()).also { clients += it }
        empty.put("global", encoded(0f))
        assertEquals(Reason.NO_PHOTOS, empty.refusal(wholePlan()).reason)
    }

    @Test
    fun `a cancelled training ends between two steps, leaves nothing, and the next one works`() {
        val training = CountDownLatch(1)
        val cancelled = CountDownLatch(1)
        val steps = ArrayList<Float>()
        val client =
            client { opened ->
                object : SummingEngine(opened) {
                    override fun train(
                        program: String,
                        weights: Map<String, Tensor>,
                        rows: Rows,
                        batches: Sequence<IntArray>,
                        hyper: Map<String, Double>,
                        references: Map<String, Map<String, Tensor>>,
                        uniforms: Uniforms?,
                        onStep: (Float) -> Unit,
                    ) = super.train(program, weights, rows, batches, hyper, references, uniforms) { loss ->
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
            val job = async { client.assignments.carryOut(client.assignment(wholePlan(5)), onlyTest = false) }
            training.await()
            job.cancel()
            cancelled.countDown()
            assertTrue(runCatching { job.await() }.exceptionOrNull() is CancellationException)
        }
        assertEquals(2, steps.size)
        assertNull(client.outbox.first())
        client.carryOut(wholePlan())
        assertEquals(1L, checkNotNull(client.outbox.first()).round)
    }

    @Test
    fun `a prediction is by the rules of the current model`() {
        val client = client()
        val photo = client.album.photos().photos.first { it.label == "cat" }.file
        val model = client.model(rule = from("global", state = "mine"))
        val predict = { client.predict(model, photo) }
        assertEquals(mapOf("cat" to 0.5, "dog" to 0.5), predict())
        client.outbox.delivered(client.carryOut(planWithState("initial")))
        val predicted = predict()
        assertEquals(listOf("cat", "dog"), predicted.keys.toList())
        assertEquals(1.0, predicted.values.sum(), 1e-12)
        assertTrue(predicted.getValue("cat") > 0.9)
    }

    @Test
    fun `a model whose rules leave a tensor out is refused`() {
        val client = client()
        val photo = client.album.photos().photos.first().file
        val model = client.model(rule = from("global", "", "fc.bias"))
        val lacking =
            assertThrows(AssignmentException::class.java) { client.predict(model, photo) }
        assertEquals("not supported: no rule selects tensor 'fc.weight'", lacking.message)
    }

    @Test
    fun `a bundle that is not pinned is not even fetched, whatever it is wanted for`() {
        val client = client()
        val photo = client.album.photos().photos.first().file
        client.policy = Policy(bundles = setOf("00"))
        val uses: List<suspend () -> Any> =
            listOf(
                { client.assignments.carryOut(client.assignment(wholePlan()), onlyTest = false) },
                { client.predict(client.model(), photo) },
                { client.assignments.embedNew(client.model(), onlyTest = false) },
                { client.predictor.manifest(client.model()) },
            )
        for (use in uses) {
            val error = assertThrows(AssignmentException::class.java) { runBlocking { use() } }
            val bundle = client.bundle.id.toHex()
            assertEquals("this client's policy: bundle $bundle is not among the pinned ones", error.message)
        }
        assertEquals(emptyList<ByteString>(), client.server.fetched)
        client.policy = Policy()
        client.carryOut(wholePlan())
        client.policy = Policy(bundles = setOf("00"))
        assertThrows(AssignmentException::class.java) { runBlocking { uses[1]() } }
    }

    @Test
    fun `a concatenated model stands on its extractors, in rounds and in predictions`() {
        val client = client(SummingBundle(concatenated = 2))
        client.put("global", encoded(0f, width = 4))
        client.put("first", BlobWriter.encode(extractor(1f, 0f, 0f, 0f, 1f, 0f)))
        val plan = wholePlan { addExtractors("first").addExtractors("absent") }
        val first = client.carryOut(plan)
        val weights = uploaded(first).floats("fc.weight")
        // Eight red cats give 1 to the first column; whose extractor is absent has zeros.
        assertEquals(8f, weights[0], 0f)
        assertEquals(List(2) { 0f }, weights.subList(2, 4))
        val batches = client.engines[0].extracted
        client.outbox.delivered(first)
        client.carryOut(plan, round = 2)
        assertEquals(batches, client.engines[0].extracted)
        val photo = client.album.photos().photos.first { it.label == "cat" }.file
        client.put("global", uploadedBytes(first))
        val model = client.model(extractors = listOf("first", "absent"))
        val predicted = client.predict(model, photo)
        assertTrue(predicted.getValue("cat") > 0.9)
        assertEquals(Reason.UNSUPPORTED, client.refusal(wholePlan()).reason)
    }

    @Test
    fun `photos are embedded when they arrive, and the names of the classes are listed`() {
        val client = client()
        val model = client.model()
        assertEquals(listOf("cat", "dog"), runBlocking { client.predictor.manifest(model).classNamesList })
        assertEquals(20, runBlocking { client.assignments.embedNew(model, onlyTest = false) })
        client.album.add("cat", 1, first = 30)
        assertEquals(1, runBlocking { client.assignments.embedNew(model, onlyTest = false) })
        val embedded = client.engines[0].embedded
        client.carryOut(wholePlan())
        assertEquals(embedded, client.engines[0].embedded)
    }

    @Test
    fun `an engine that cannot be made is tried again`() {
        var tries = 0
        val client =
            client { opened ->
                tries++
                if (tries ==
                    1
                ) {
                    throw EngineException(EngineException.Reason.BUNDLE_UNUSABLE, "damaged")
                } else {
                    SummingEngine(opened)
                }
            }
        assertThrows(EngineException::class.java) { client.carryOut(wholePlan()) }
        client.carryOut(wholePlan())
        assertEquals(2, tries)
    }

    @Test
    fun `a reference is bound to what the training starts from`() {
        val client = client(SummingBundle(withReference = true))
        val binding = Binding.newBuilder().setReference("global").setSource(source(value = "start"))
        val pull = HyperValue.newBuilder().setName("mu").setValue(1.0)
        val result = client.carryOut(wholePlan { training { addBindings(binding).addHyperValues(pull) } })
        // With mu = 1 each step ends where the training began.
        assertEquals(listOf(0f, 0f), uploaded(result).floats("fc.bias"))
    }

    private fun extractor(vararg values: Float): Map<String, Tensor> =
        mapOf("base.weight" to FloatTensor.of(listOf(2, 3), values))

    private fun uploadedBytes(result: Result): ByteArray =
        ByteArrayOutputStream().also { result.update.blobs.single().writeTo(it) }.toByteArray()
}
