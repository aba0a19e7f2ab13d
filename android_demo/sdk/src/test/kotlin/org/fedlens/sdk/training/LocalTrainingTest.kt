package org.fedlens.sdk.training

import com.google.protobuf.ByteString
import org.fedlens.proto.v1.Assignment
import org.fedlens.proto.v1.EvaluationMoment
import org.fedlens.proto.v1.EvaluationPlan
import org.fedlens.proto.v1.HyperValue
import org.fedlens.proto.v1.Keep
import org.fedlens.proto.v1.LastBatch
import org.fedlens.proto.v1.LocalPlan
import org.fedlens.proto.v1.ReferenceBinding
import org.fedlens.proto.v1.SetSource
import org.fedlens.proto.v1.Stage
import org.fedlens.proto.v1.TensorSelector
import org.fedlens.sdk.AlbumEntry
import org.fedlens.sdk.AssignmentException
import org.fedlens.sdk.EngineException
import org.fedlens.sdk.KeyedHash
import org.fedlens.sdk.blob.FloatTensor
import org.fedlens.sdk.blob.LongTensor
import org.fedlens.sdk.engine.Rows
import org.fedlens.sdk.sha256
import org.junit.Assert.assertArrayEquals
import org.junit.Assert.assertEquals
import org.junit.Assert.assertNotEquals
import org.junit.Assert.assertNull
import org.junit.Assert.assertSame
import org.junit.Assert.assertThrows
import org.junit.Assert.assertTrue
import org.junit.Rule
import org.junit.Test
import org.junit.rules.TemporaryFolder
import kotlin.math.ln

class LocalTrainingTest {
    @get:Rule
    val folder = TemporaryFolder()

    private fun engine(bundle: SummingBundle = SummingBundle()) = SummingEngine(bundle.write(folder.newFolder()))

    private fun run(
        engine: SummingEngine,
        plan: LocalPlan,
        train: Int = 10,
        test: Int = 3,
        downloads: Map<String, Tensors> = mapOf("global" to filled(0f)),
        clientState: Map<String, Tensors> = emptyMap(),
        onStep: (Long, Long, Float) -> Unit = { _, _, _ -> },
    ): TrainingResult {
        val assignment = Assignment.newBuilder().setSeed(ByteString.copyFrom(SEED)).setLocalPlan(plan).build()
        val photos = PreparedPhotos(photoSet(train), photoSet(test, "test"), emptyMap())
        return LocalTraining(assignment, engine, photos, downloads, clientState::get, onStep).execute()
    }

    /** Photo i of n, by digest, has features 3i, 3i + 1, 3i + 2 and label i modulo 2. */
    private fun photoSet(
        count: Int,
        name: String = "train",
    ): PhotoSet {
        val entries = (0 until count).map { AlbumEntry(sha256("$name$it".toByteArray())) }.sorted()
        return PhotoSet(entries, Rows(FloatArray(3 * count) { it.toFloat() }, LongArray(count) { it % 2L }))
    }

    private fun order(
        count: Int,
        stage: Int,
        epoch: Int,
    ) = KeyedHash.photoOrder(SEED, stage, epoch, photoSet(count).entries).toList()

    private fun bound(change: ReferenceBinding.Builder.() -> Unit) =
        wholePlan { addReferences(ReferenceBinding.newBuilder().setName("global").apply(change)) }

    private fun names(vararg names: String) = TensorSelector.newBuilder().addAllNames(names.toList())

    @Test
    fun `an epoch takes the photos in the order of their keyed hashes`() {
        val engine = engine()
        run(engine, wholePlan(epochs = 2))
        val wanted = listOf(0, 1).flatMap { epoch -> order(10, 0, epoch).chunked(4) }
        assertEquals(listOf(wanted), engine.batches)
        assertEquals(listOf(4, 4, 2, 4, 4, 2), wanted.map { it.size })
    }

    @Test
    fun `what is trained is what the batches hold`() {
        val result = run(engine(), wholePlan(), train = 3, downloads = mapOf("global" to filled(10f)))
        // Photos 0 and 2 are cats with features 0 1 2 and 6 7 8, photo 1 is a dog with 3 4 5; the learning rate is 1.
        val upload = checkNotNull(result.upload)
        assertEquals(listOf(12f, 11f), upload.floats("fc.bias"))
        assertEquals(listOf(16f, 18f, 20f, 13f, 14f, 15f), upload.floats("fc.weight"))
    }

    @Test
    fun `a stage counted in steps runs on into the next epoch`() {
        val engine = engine()
        run(engine, wholePlan { setStages(0, Stage.newBuilder().setProgram("step").setSteps(5)) })
        run(engine, wholePlan(epochs = 2))
        assertEquals(engine.batches[1].take(5), engine.batches[0])
    }

    @Test
    fun `the last batch is filled cyclically from the start of the epoch where the bundle says so`() {
        val engine = engine(SummingBundle(lastBatch = LastBatch.LAST_BATCH_FILLED))
        run(engine, wholePlan(), train = 6)
        run(engine, wholePlan(), train = 1)
        val (first, last) = engine.batches[0]
        // Six photos: the second batch holds the last two and then the first two.
        assertEquals(first.take(2), last.drop(2))
        assertEquals(listOf(listOf(0, 0, 0, 0)), engine.batches[1])
    }

    @Test
    fun `stages follow each other with orders and hyper-parameters of their own`() {
        val engine = engine()
        val seen = ArrayList<Pair<Long, Long>>()
        val idle = stage(program = "another-step").addHyperValues(HyperValue.newBuilder().setName("lr").setValue(0.0))
        val plan = wholePlan { addStages(idle) }
        val result = run(engine, plan, test = 0) { step, steps, _ -> seen += step to steps }
        assertEquals(listOf("step", "another-step"), engine.programs)
        assertEquals(listOf(order(10, 0, 0).chunked(4), order(10, 1, 0).chunked(4)), engine.batches)
        assertNotEquals(engine.batches[0], engine.batches[1])
        assertEquals((1L..6).map { it to 6L }, seen)
        // The second stage has learning rate 0: what comes out is what the first one has made.
        assertEquals(engine.weights[1].floats("fc.weight"), result.upload?.floats("fc.weight"))
        assertNotEquals(engine.weights[0].floats("fc.weight"), engine.weights[1].floats("fc.weight"))
    }

    @Test
    fun `client state is used where there is one and the download before`() {
        val engine = engine()
        val plan = wholePlan { setStart(0, from("global", kept = "mine")) }
        run(engine, plan)
        run(engine, plan, clientState = mapOf("mine" to filled(1f)))
        // One of another bundle gives way too.
        run(engine, plan, clientState = mapOf("mine" to filled(1f, width = 5)))
        assertEquals(listOf(0f, 1f, 0f), engine.weights.map { it.floats("fc.bias")[0] })
    }

    @Test
    fun `the first rule that selects a tensor counts`() {
        val engine = engine()
        val plan = wholePlan { clearStart().addStart(from("other", "", "fc.bias")).addStart(from("global")) }
        run(engine, plan, downloads = mapOf("global" to filled(0f), "other" to filled(1f)))
        assertEquals(listOf(1f, 1f), engine.weights[0].floats("fc.bias"))
        assertEquals(List(6) { 0f }, engine.weights[0].floats("fc.weight"))
    }

    @Test
    fun `references are the start, a set, client state or the counts of labels`() {
        val engine = engine(SummingBundle(withReference = true))
        val sets = mapOf("global" to filled(0f), "other" to filled(1f))

        fun reference(change: ReferenceBinding.Builder.() -> Unit): Tensors {
            val plan = bound(change).toBuilder().setStart(0, from("other")).build()
            run(engine, plan, train = 5, downloads = sets, clientState = mapOf("mine" to filled(2f)))
            return engine.references.last().getValue("global")
        }
        assertEquals(listOf(1f, 1f), reference { start = true }.floats("fc.bias"))
        assertEquals(
            listOf(0f, 0f),
            reference { setSet(SetSource.newBuilder().setDownload("global")) }.floats("fc.bias"),
        )
        assertEquals(listOf(2f, 2f), reference { setSet(SetSource.newBuilder().setKept("mine")) }.floats("fc.bias"))
        // Labels alternate from 0: three of class 0, two of class 1.
        assertEquals(listOf(3f, 2f), reference { labelCounts = true }.floats("label_counts"))
    }

    @Test
    fun `what is stored and uploaded is selected from the trained tensors`() {
        val plan =
            wholePlan {
                sending { setTensors(names("fc.bias")) }
                addKeep(Keep.newBuilder().setSet("head").setTensors(names("fc.weight")))
                addKeep(Keep.newBuilder().setSet("all"))
            }
        val result = run(engine(), plan)
        assertEquals(setOf("fc.bias"), result.upload?.keys)
        assertEquals(
            mapOf("head" to setOf("fc.weight"), "all" to setOf("fc.bias", "fc.weight")),
            result.newState.mapValues { it.value.keys },
        )
        assertEquals(listOf(5f, 5f), result.upload?.floats("fc.bias"))
    }

    @Test
    fun `an evaluation phase trains and sends nothing`() {
        val engine = engine()
        val plan = wholePlan { clearStages().clearUpload().setEvaluation(EvaluationPlan.newBuilder().setAtStart(true)) }
        val result = run(engine, plan, train = 5)
        assertNull(result.upload)
        assertEquals(0, result.numExamples)
        assertTrue(engine.batches.isEmpty() && result.newState.isEmpty())
        // Zero weights: log 2 for each of three photos.
        val found = result.evaluations.getValue(EvaluationMoment.EVALUATION_MOMENT_START)
        assertEquals(3L, found.count)
        assertEquals(3 * ln(2.0), found.loss, 1e-12)
    }

    @Test
    fun `stages of a fine-tuned evaluation start where the training starts and change nothing else`() {
        val engine = engine()
        val plan = wholePlan()
        val plain = run(engine, plan)
        val seen = ArrayList<Pair<Long, Long>>()
        val both = plan.toBuilder().apply { evaluating { addFineTuning(stage(epochs = 2)) } }.build()
        val tuned = run(engine, both) { step, steps, _ -> seen += step to steps }
        val (fineTuned, trained) = engine.batches.drop(1)
        assertSame(engine.weights[1], engine.weights[2])
        // Ten photos in batches of four: three steps an epoch. Their order is that of a stage behind those of the plan.
        assertEquals(6 to 3, fineTuned.size to trained.size)
        assertEquals((1L..9).map { it to 9L }, seen)
        assertEquals(order(10, 1, 0).take(4), fineTuned[0])
        assertEquals(
            listOf(
                EvaluationMoment.EVALUATION_MOMENT_START,
                EvaluationMoment.EVALUATION_MOMENT_FINE_TUNED,
                EvaluationMoment.EVALUATION_MOMENT_END,
            ),
            tuned.evaluations.keys.toList(),
        )
        val end = EvaluationMoment.EVALUATION_MOMENT_END
        assertEquals(plain.evaluations.getValue(end).loss, tuned.evaluations.getValue(end).loss, 0.0)
        assertNotEquals(
            plain.evaluations.getValue(end).loss,
            tuned.evaluations.getValue(EvaluationMoment.EVALUATION_MOMENT_FINE_TUNED).loss,
        )
        assertEquals(plain.upload?.floats("fc.weight"), tuned.upload?.floats("fc.weight"))
    }

    @Test
    fun `each evaluation has a confusion matrix if requested`() {
        val plan = wholePlan { addStatistics(CONFUSION) }
        val found = run(engine(), plan, test = 3).evaluations
        val (start, end) = found.values.toList()
        // Zero weights: the logits are equal, so that the first class counts. Labels 0, 1, 0.
        assertArrayEquals(longArrayOf(2, 0, 1, 0), start.confusion)
        val counts = checkNotNull(end.confusion)
        assertEquals(3L to end.correct, counts.sum() to counts[0] + counts[3])
        val nothing = run(engine(), plan, test = 0).evaluations.values.last()
        assertArrayEquals(LongArray(4), nothing.confusion)
        assertEquals(0L to 0.0, nothing.count to nothing.loss)
        assertNull(run(engine(), wholePlan()).evaluations.values.last().confusion)
    }

    @Test
    fun `class counts add up to the photos counted`() {
        val plan = wholePlan { clearStages().clearUpload().clearEvaluation().addStatistics(CLASS_COUNTS) }
        val result = run(engine(), plan, train = 5)
        assertArrayEquals(longArrayOf(3, 2), result.classCounts)
        assertEquals(5, result.numExamples)
    }

    @Test
    fun `a plan that trains or counts train photos needs one`() {
        val counting = wholePlan { clearStages().clearUpload().clearEvaluation().addStatistics(labelDistribution(1.0)) }
        for (plan in listOf(wholePlan(), counting)) {
            val error =
                assertFails<AssignmentException>("there is no labelled train photo") { run(engine(), plan, train = 0) }
            assertEquals(AssignmentException.Reason.NO_PHOTOS, error.reason)
        }
    }

    @Test
    fun `a set that does not fit the bundle is named`() {
        val bias = filled(0f) - "fc.weight"
        val wide = filled(0f) + ("fc.bias" to FloatTensor.of(listOf(3), FloatArray(3)))
        val integers = filled(0f) + ("fc.bias" to LongTensor.of(listOf(2), LongArray(2)))
        val refused =
            mapOf(
                bias to "downloaded set 'global' has no tensor 'fc.weight'",
                wide to "downloaded set 'global': tensor 'fc.bias' is float32[3], the bundle has float32[2]",
                integers to "downloaded set 'global': tensor 'fc.bias' is int64[2], the bundle has float32[2]",
            )
        for ((set, text) in refused) {
            val error =
                assertFails<AssignmentException>(
                    text,
                ) { run(engine(), wholePlan(), downloads = mapOf("global" to set)) }
            assertEquals(AssignmentException.Reason.UNSUPPORTED, error.reason)
        }
        assertFails<AssignmentException>("there is no downloaded set 'global'") {
            run(engine(), wholePlan(), downloads = emptyMap())
        }
    }

    @Test
    fun `client state that must be there and is not, or does not fit, is named`() {
        val plan = wholePlan { setStart(0, from(kept = "mine")) }
        val error = assertFails<AssignmentException>("there is no client state 'mine' yet") { run(engine(), plan) }
        assertEquals(AssignmentException.Reason.INTERNAL, error.reason)
        assertFails<AssignmentException>(
            "client state 'mine': tensor 'fc.weight' is float32[2, 5], the bundle has float32[2, 3]",
        ) { run(engine(), plan, clientState = mapOf("mine" to filled(0f, width = 5))) }
    }

    @Test
    fun `start rules must cover every tensor`() {
        val plan = wholePlan { setStart(0, from("global", "", "fc.bias")) }
        assertFails<AssignmentException>(
            "no start rule selects tensor 'fc.weight' of the bundle",
        ) { run(engine(), plan) }
    }

    @Test
    fun `a fault of the engine and what a listener throws end the training`() {
        val diverging = stage(epochs = 40).addHyperValues(HyperValue.newBuilder().setName("lr").setValue(1e38))
        val fault =
            assertThrows(EngineException::class.java) { run(engine(), wholePlan { setStages(0, diverging) }) }
        assertEquals(EngineException.Reason.NON_FINITE, fault.reason)
        assertThrows(InterruptedException::class.java) {
            run(engine(), wholePlan()) { step, _, _ -> if (step == 2L) throw InterruptedException() }
        }
    }

    @Test
    fun `only downloads that are read are needed`() {
        val manifest = SummingBundle(withReference = true).manifest
        val plan =
            bound { setSet(SetSource.newBuilder().setDownload("before")) }
                .toBuilder()
                .setStart(0, from("global", kept = "mine"))
                .addStart(from("never"))
                .addExtractors("cluster")
                .apply { sending { baseSet = "base" } }
                .build()
        assertEquals(setOf("global", "before", "cluster", "base"), Sources.needed(plan, manifest) { null })
        assertEquals(setOf("before", "cluster", "base"), Sources.needed(plan, manifest) { filled(1f) })
        assertEquals(
            setOf("global", "before", "cluster", "base"),
            Sources.needed(plan, manifest) { filled(1f, width = 5) },
        )
    }
}
