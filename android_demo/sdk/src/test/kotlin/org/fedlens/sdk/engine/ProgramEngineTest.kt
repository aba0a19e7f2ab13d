package org.fedlens.sdk.engine

import org.fedlens.sdk.Bundle
import org.fedlens.sdk.EngineException
import org.fedlens.sdk.EngineException.Reason
import org.fedlens.sdk.Vectors
import org.fedlens.sdk.blob.FloatTensor
import org.fedlens.sdk.blob.LongTensor
import org.fedlens.sdk.blob.Tensor
import org.junit.Assert.assertArrayEquals
import org.junit.Assert.assertEquals
import org.junit.Assert.assertSame
import org.junit.Assert.assertThrows
import org.junit.Assert.assertTrue
import org.junit.Rule
import org.junit.Test
import org.junit.rules.TemporaryFolder
import java.util.concurrent.CancellationException

/**
 * The path of rows, weights and hyper-parameters to programs, which are functions here; `jvm-engine` runs real ones.
 */
class ProgramEngineTest {
    @get:Rule
    val folder = TemporaryFolder()

    private val bundle = Bundle.open(Vectors.file("bundle"))
    private val weights: Map<String, Tensor> = bundle.initial().tensors
    private val references = mapOf("global" to weights)
    private val rows = Rows(FloatArray(5 * WIDTH) { it.toFloat() }, longArrayOf(0, 1, 2, 1, 0))

    @Test
    fun `a short batch is padded and masked, and the next full one is not`() {
        val seen = mutableListOf<Triple<List<Float>, List<Long>, List<Float>>>()
        val runtime =
            ScriptedRuntime { program ->
                seen +=
                    Triple(
                        program.floats("SLOT_KIND_MASK"),
                        program.longs("SLOT_KIND_LABEL"),
                        program.floats("SLOT_KIND_INPUT"),
                    )
            }
        train(runtime, batches = listOf(intArrayOf(4, 0), intArrayOf(1, 2, 3, 0)))
        val (short, full) = seen.takeLast(2)
        assertEquals(listOf(1f, 1f, 0f, 0f), short.first)
        assertEquals(listOf(0L, 0L), short.second.take(2))
        assertEquals(row(4) + row(0), short.third.take(2 * WIDTH))
        assertEquals(listOf(1f, 1f, 1f, 1f), full.first)
        assertEquals(listOf(1L, 2L, 1L, 0L), full.second)
        assertEquals(row(1) + row(2) + row(3) + row(0), full.third)
    }

    @Test
    fun `weights and state that come out of a step go into the next one, and state starts at zero`() {
        val velocities = mutableListOf<Float>()
        val runtime =
            ScriptedRuntime { program ->
                if (program.form.name == "step") {
                    velocities += program.floats("velocity/classifier.bias")[0]
                    program.give("velocity/classifier.bias", velocities.last() + 1)
                    program.give("classifier.bias", program.floats("classifier.bias")[0] + 2)
                }
            }
        val start = weights + ("classifier.bias" to FloatTensor.of(listOf(3), floatArrayOf(10f, 10f, 10f)))
        engine(runtime).use { engine ->
            repeat(2) {
                velocities.clear()
                val trained =
                    engine.train("step", start, rows, List(3) { intArrayOf(0) }.asSequence(), references = references)
                assertEquals(listOf(0f, 1f, 2f), velocities.takeLast(3))
                assertArrayEquals(
                    floatArrayOf(16f, 16f, 16f),
                    (trained["classifier.bias"] as FloatTensor).toArray(),
                    0f,
                )
                assertEquals(weights.keys, trained.keys)
            }
        }
    }

    @Test
    fun `hyper-parameters are those given, and the manifest's where none is`() {
        val runtime = ScriptedRuntime()
        train(runtime, hyper = mapOf("mu" to 0.75))
        assertEquals(listOf(0.75f), runtime.loaded.single().floats("mu"))
        val momentum = bundle.manifest.hyperParametersList.single { it.name == "momentum" }
        assertEquals(listOf(momentum.defaultValue.toFloat()), runtime.loaded.single().floats("momentum"))
    }

    @Test
    fun `a reference's tensors reach their own slots`() {
        val runtime = ScriptedRuntime()
        val other = mapOf("classifier.bias" to FloatTensor.of(listOf(3), floatArrayOf(7f, 8f, 9f)))
        train(runtime, references = mapOf("global" to weights + other))
        assertEquals(listOf(7f, 8f, 9f), runtime.loaded.single().floats("global/classifier.bias"))
    }

    @Test
    fun `predict takes its rows in batches and leaves padding out`() {
        val runtime =
            ScriptedRuntime { program ->
                program.give("SLOT_KIND_LOGITS", program.floats("SLOT_KIND_INPUT")[0])
            }
        val logits = engine(runtime).use { it.predict(weights, rows.inputs) }
        // Rows 0 to 3 are one batch, row 4 another; each batch gives the first number of its first row.
        assertEquals(List(4 * 3) { 0f } + List(3) { 4f * WIDTH }, logits.asList())
    }

    @Test
    fun `every program is tried on zeros and on ones before it is first used, and by a later engine no more`() {
        val seen = mutableListOf<Float>()
        val runtime = ScriptedRuntime { program -> seen += program.floats("SLOT_KIND_INPUT")[0] }
        repeat(2) { engine(runtime).use { it.embed(FloatArray(3 * 16 * 16) { 0.5f }) } }
        assertEquals(listOf(0f, 1f, 0.5f, 0.5f), seen)
    }

    @Test
    fun `bad input is named before anything runs`() {
        val bias = FloatTensor.of(listOf(4), FloatArray(4))
        assertBad("tensor 'classifier.bias' is missing from the weights", weights = weights - "classifier.bias")
        assertBad(
            "tensor 'classifier.bias' of the weights: found float32[4], the bundle takes float32[3]",
            weights = weights + ("classifier.bias" to bias),
        )
        assertBad(
            "tensor 'classifier.bias' of the weights: found int64[3], the bundle takes float32[3]",
            weights = weights + ("classifier.bias" to LongTensor.of(listOf(3), LongArray(3))),
        )
        assertBad("reference 'global' is missing", references = emptyMap())
        assertBad(
            "tensor 'classifier.bias' is missing from reference 'global'",
            references =
                mapOf(
                    "global" to weights - "classifier.bias",
                ),
        )
        assertBad("hyper-parameter 'lr' is unknown; the bundle has lr_", hyper = mapOf("lr" to 0.1))
        assertBad("hyper-parameter 'mu' is -1.0; allowed are 0.0 to", hyper = mapOf("mu" to -1.0))
        assertBad("hyper-parameter 'mu' is NaN; allowed are 0.0 to", hyper = mapOf("mu" to Double.NaN))
        assertBad("label 3 is not one of 0 to 2", rows = Rows(rows.inputs, longArrayOf(0, 1, 2, 3, 0)))
        assertBad(
            "the rows' inputs: found 79 numbers, the bundle takes float32[5, 16]",
            rows = Rows(FloatArray(79), rows.labels),
        )
        assertBad("program 'step' takes no views of each photo", rows = Rows(rows.inputs, rows.labels, NoViews))
        assertBad("a batch of 5 rows; the bundle takes 1 to 4", batches = listOf(intArrayOf(0, 1, 2, 3, 4)))
        assertBad("a batch of 0 rows; the bundle takes 1 to 4", batches = listOf(intArrayOf()))
        assertBad("a batch asks for a row outside 0 to 4", batches = listOf(intArrayOf(5)))
    }

    @Test
    fun `photos, rows and views of another form are bad input`() {
        engine().use { engine ->
            assertReason(Reason.BAD_INPUT, "the photo: found 5 numbers") { engine.embed(FloatArray(5)) }
            assertReason(Reason.BAD_INPUT, "the bundle has no views") { engine.view(FloatArray(768), FloatArray(1)) }
            assertReason(
                Reason.BAD_INPUT,
                "the rows' inputs: found 17 numbers",
            ) { engine.predict(weights, FloatArray(17)) }
            assertReason(Reason.BAD_INPUT, "there are no rows") { engine.predict(weights, FloatArray(0)) }
        }
    }

    @Test
    fun `a program that the bundle does not have is named with those that it has`() {
        engine().use { engine ->
            assertReason(Reason.BUNDLE_UNUSABLE, "the bundle has no program 'extract'; it has embed, step, predict") {
                engine.extract(emptyMap(), FloatArray(16))
            }
            assertReason(
                Reason.BUNDLE_UNUSABLE,
                "program 'predict' has 0 slots of kind SLOT_KIND_LOSS where one is needed",
            ) {
                engine.train("predict", weights, rows, emptySequence())
            }
        }
    }

    @Test
    fun `a loss that is no number ends the training and names the step`() {
        var step = 0
        val runtime =
            ScriptedRuntime { program ->
                program.give(
                    "SLOT_KIND_LOSS",
                    if (++step ==
                        TRIAL_RUNS + 2
                    ) {
                        Float.NaN
                    } else {
                        1f
                    },
                )
            }
        val losses = mutableListOf<Float>()
        assertReason(Reason.NON_FINITE, "the loss of step 2 is NaN; a smaller learning rate may help") {
            train(runtime, batches = List(3) { intArrayOf(0) }, onStep = losses::add)
        }
        assertEquals(listOf(1f), losses)
    }

    @Test
    fun `an infinity in what comes out is refused by name`() {
        val runtime =
            ScriptedRuntime { program ->
                when (program.form.name) {
                    "step" -> program.give("extractor.bias", Float.POSITIVE_INFINITY)
                    "predict" -> program.give("SLOT_KIND_LOGITS", Float.NaN)
                    else -> program.give("SLOT_KIND_FEATURES", Float.NEGATIVE_INFINITY)
                }
            }
        assertReason(
            Reason.NON_FINITE,
            "tensor 'extractor.bias' holds a NaN or an infinity",
        ) { train(runtime) }
        engine(runtime).use { engine ->
            assertReason(Reason.NON_FINITE, "tensor SLOT_KIND_LOGITS holds") { engine.predict(weights, rows.inputs) }
            assertReason(Reason.NON_FINITE, "the features of a photo hold") { engine.embed(FloatArray(768)) }
        }
    }

    @Test
    fun `what onStep throws ends the training and reaches the caller as it is`() {
        val cancelled = CancellationException("enough")
        val runtime = ScriptedRuntime()
        val caught =
            assertThrows(CancellationException::class.java) {
                train(runtime, batches = List(9) { intArrayOf(0) }, onStep = { throw cancelled })
            }
        assertSame(cancelled, caught)
        assertEquals(TRIAL_RUNS + 1, runtime.loaded.single().runs)
    }

    @Test
    fun `closing closes every program, and then nothing runs`() {
        val runtime = ScriptedRuntime()
        val engine = engine(runtime)
        engine.embed(FloatArray(768))
        engine.predict(weights, rows.inputs)
        engine.close()
        engine.close()
        assertTrue(runtime.loaded.size == 2 && runtime.loaded.all { it.isClosed })
        assertThrows(IllegalStateException::class.java) { engine.embed(FloatArray(768)) }
    }

    @Test
    fun `a program that fails its trial is closed, and tried again the next time`() {
        val runtime = ScriptedRuntime { throw EngineException(Reason.BUNDLE_UNUSABLE, "no such operator") }
        engine(runtime).use { engine ->
            repeat(3) { assertReason(Reason.BUNDLE_UNUSABLE, "no such operator") { engine.embed(FloatArray(768)) } }
        }
        assertEquals(3, runtime.loaded.size)
        assertTrue(runtime.loaded.all { it.isClosed })
    }

    @Test
    fun `a death of the process in a trial is a crash of the bundle, and the log says when it may run again`() {
        val marks = folder.root
        // A process that dies leaves the mark as it is; here it is put back.
        var left = "" to byteArrayOf()
        val dying =
            ScriptedRuntime {
                left = checkNotNull(marks.listFiles()).single().let { it.name to it.readBytes() }
                throw Died()
            }
        assertThrows(Died::class.java) { engine(dying).embed(FloatArray(768)) }
        marks.resolve(left.first).writeBytes(left.second)
        val (crashes, runtime) = CountedCrashes(most = 1) to ScriptedRuntime()
        repeat(2) {
            assertReason(Reason.BUNDLE_UNUSABLE, "this bundle has crashed 1 times") {
                engine(runtime, crashes).embed(FloatArray(768))
            }
        }
        assertTrue(runtime.loaded.isEmpty())
        assertEquals(1, crashes.total)
    }

    @Test
    fun `in a process of their own programs are not tried, and a crash is counted and costs only what was loaded`() {
        var isHostile = true
        val runtime =
            ScriptedRuntime(isInProcess = false) {
                if (isHostile) throw EngineException(Reason.CRASHED, "its process has ended")
            }
        val crashes = CountedCrashes(most = 2)
        engine(runtime, crashes).use { engine ->
            assertReason(Reason.CRASHED, "its process has ended; crash 1") { engine.embed(FloatArray(768)) }
            assertTrue(runtime.loaded.single().isClosed)
            isHostile = false
            engine.embed(FloatArray(768))
            assertEquals("embedded without a trial", 1, runtime.loaded.last().runs)
            isHostile = true
            assertReason(Reason.CRASHED, "its process has ended; crash 2") { engine.embed(FloatArray(768)) }
            assertReason(Reason.BUNDLE_UNUSABLE, "this bundle has crashed 2 times") { engine.embed(FloatArray(768)) }
        }
        assertEquals(2, runtime.loaded.size)
        assertEquals(emptyList<String>(), folder.root.list()?.toList())
    }

    private fun engine(
        runtime: ProgramRuntime = ScriptedRuntime(),
        crashes: CrashLog = CountedCrashes(),
    ) = ProgramEngine(bundle, runtime, folder.root, crashes)

    private fun train(
        runtime: ProgramRuntime,
        weights: Map<String, Tensor> = this.weights,
        rows: Rows = this.rows,
        batches: List<IntArray> = listOf(intArrayOf(0)),
        hyper: Map<String, Double> = emptyMap(),
        references: Map<String, Map<String, Tensor>> = this.references,
        onStep: (Float) -> Unit = {},
    ) = engine(runtime).use { it.train("step", weights, rows, batches.asSequence(), hyper, references, null, onStep) }

    private fun assertBad(
        text: String,
        weights: Map<String, Tensor> = this.weights,
        rows: Rows = this.rows,
        batches: List<IntArray> = listOf(intArrayOf(0)),
        hyper: Map<String, Double> = emptyMap(),
        references: Map<String, Map<String, Tensor>> = this.references,
    ) {
        val runtime = ScriptedRuntime()
        engine(runtime).use { it.train("step", this.weights, this.rows, emptySequence(), references = this.references) }
        val before = runtime.loaded.sumOf { it.runs }
        assertReason(Reason.BAD_INPUT, text) { train(runtime, weights, rows, batches, hyper, references) }
        assertEquals("ran", before, runtime.loaded.sumOf { it.runs })
    }

    private fun assertReason(
        reason: Reason,
        text: String,
        action: () -> Any,
    ) {
        val error = assertThrows(EngineException::class.java) { action() }
        assertEquals(error.message, reason, error.reason)
        assertTrue(error.message, text in error.message.orEmpty())
    }

    private fun row(index: Int) = rows.inputs.asList().subList(index * WIDTH, (index + 1) * WIDTH)

    private object NoViews : Views {
        override val width = WIDTH

        override fun take(
            rows: IntArray,
            into: FloatArray,
        ) = Unit
    }

    private class Died : Error()

    private companion object {
        const val WIDTH = 16

        /** A program runs on zeros and on ones first. */
        const val TRIAL_RUNS = 2
    }
}
