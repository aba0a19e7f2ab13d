package org.fedlens.sdk.training

import com.google.protobuf.ByteString
import org.fedlens.proto.v1.Assignment
import org.fedlens.proto.v1.Binding
import org.fedlens.proto.v1.HyperValue
import org.fedlens.proto.v1.LocalPlan
import org.fedlens.sdk.AlbumEntry
import org.fedlens.sdk.AssignmentException
import org.fedlens.sdk.EngineException
import org.fedlens.sdk.blob.FloatTensor
import org.fedlens.sdk.blob.LongTensor
import org.fedlens.sdk.engine.Rows
import org.fedlens.sdk.sha256
import org.junit.Assert.assertArrayEquals
import org.junit.Assert.assertEquals
import org.junit.Assert.assertThrows
import org.junit.Rule
import org.junit.Test
import org.junit.rules.TemporaryFolder

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
        return LocalTraining(assignment, engine, photos, downloads, clientState::get, onStep = onStep).execute()
    }

    /** Photo i of n, by digest, has features 3i, 3i + 1, 3i + 2 and label i modulo 2. */
    private fun photoSet(
        count: Int,
        name: String = "train",
    ): PhotoSet {
        val entries = (0 until count).map { AlbumEntry(sha256("$name$it".toByteArray())) }.sorted()
        return PhotoSet(entries, Rows(FloatArray(3 * count) { it.toFloat() }, LongArray(count) { it % 2L }))
    }

    @Test
    fun `what is trained is what the batches hold`() {
        val result = run(engine(), wholePlan(), train = 3, downloads = mapOf("global" to filled(10f)))
        // Photos 0 and 2 are cats with features 0 1 2 and 6 7 8, photo 1 is a dog with 3 4 5; the learning rate is 1.
        val upload = result.uploads.getValue("weights")
        assertEquals(listOf(12f, 11f), upload.floats("fc.bias"))
        assertEquals(listOf(16f, 18f, 20f, 13f, 14f, 15f), upload.floats("fc.weight"))
    }

    @Test
    fun `an evaluation of no photos is zeros`() {
        val found = run(engine(), wholePlan { addStatistics(CONFUSION) }, test = 0).evaluations.values.last()
        assertArrayEquals(LongArray(4), found.confusion)
        assertEquals(0L to 0.0, found.count to found.loss)
    }

    @Test
    fun `a plan that trains or counts train photos needs one`() {
        for (plan in listOf(wholePlan(), countingPlan(CLASS_COUNTS), countingPlan(labelDistribution(1.0)))) {
            val error =
                assertFails<AssignmentException>("there is no labelled train photo") { run(engine(), plan, train = 0) }
            assertEquals(AssignmentException.Reason.NO_PHOTOS, error.reason)
        }
        assertEquals(0, run(engine(), evaluatingPlan(), train = 0).numExamples)
    }

    @Test
    fun `a set that does not fit is named`() {
        val bias = filled(0f) - "fc.weight"
        val wide = filled(0f) + ("fc.bias" to FloatTensor.of(listOf(3), FloatArray(3)))
        val integers = filled(0f) + ("fc.bias" to LongTensor.of(listOf(2), LongArray(2)))
        val refused =
            mapOf(
                bias to "downloaded set 'global' has no tensor 'fc.weight'",
                wide to "downloaded set 'global': tensor 'fc.bias' is float32[3], needed is float32[2]",
                integers to "downloaded set 'global': tensor 'fc.bias' is int64[2], needed is float32[2]",
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
        val plan = wholePlan { starting(from(state = "mine")) }
        val missing = "there is no client state 'mine' that fits"
        assertFails<AssignmentException>(missing) { run(engine(), plan) }
        val other = mapOf("mine" to filled(0f, width = 5))
        assertFails<AssignmentException>(missing) { run(engine(), plan, clientState = other) }
    }

    @Test
    fun `a fault of the engine and what a listener throws end the training`() {
        val diverging =
            wholePlan {
                training {
                    epochs = 40
                    addHyperValues(HyperValue.newBuilder().setName("lr").setValue(1e38))
                }
            }
        val fault = assertThrows(EngineException::class.java) { run(engine(), diverging) }
        assertEquals(EngineException.Reason.NON_FINITE, fault.reason)
        assertThrows(InterruptedException::class.java) {
            run(engine(), wholePlan()) { step, _, _ -> if (step == 2L) throw InterruptedException() }
        }
    }

    @Test
    fun `only downloads that are read are needed`() {
        val manifest = SummingBundle(withReference = true).manifest
        val plan =
            wholePlan {
                starting(from("global", state = "mine"), from("never"))
                training { addBindings(Binding.newBuilder().setReference("global").setSource(source("before"))) }
                addExtractors("cluster")
                sending { base = "base" }
            }
        val all = setOf("global", "before", "cluster", "base")
        assertEquals(all, Sources.needed(plan, manifest) { null })
        assertEquals(all - "global", Sources.needed(plan, manifest) { filled(1f) })
        assertEquals(all, Sources.needed(plan, manifest) { filled(1f, width = 5) })
    }
}
