package org.fedlens.sdk.engine.child

import android.os.Parcel
import android.os.ParcelFileDescriptor
import org.fedlens.proto.v1.Dtype
import org.fedlens.sdk.Bundle
import org.fedlens.sdk.EngineException
import org.fedlens.sdk.EngineException.Reason
import org.fedlens.sdk.Vectors
import org.fedlens.sdk.blob.FloatTensor
import org.fedlens.sdk.blob.TensorSpec
import org.fedlens.sdk.engine.CountedCrashes
import org.fedlens.sdk.engine.LoadedProgram
import org.fedlens.sdk.engine.ProgramEngine
import org.fedlens.sdk.engine.ProgramForm
import org.fedlens.sdk.engine.ProgramRuntime
import org.fedlens.sdk.engine.Rows
import org.fedlens.sdk.engine.ScriptedProgram
import org.fedlens.sdk.engine.ScriptedRuntime
import org.fedlens.sdk.engine.child.Link.Status
import org.junit.Assert.assertEquals
import org.junit.Assert.assertThrows
import org.junit.Assert.assertTrue
import org.junit.Rule
import org.junit.Test
import org.junit.rules.TemporaryFolder
import org.junit.runner.RunWith
import org.robolectric.RobolectricTestRunner
import org.robolectric.annotation.Config
import java.nio.ByteBuffer
import java.util.concurrent.CompletableFuture
import java.util.concurrent.CyclicBarrier
import java.util.concurrent.TimeUnit

/** Both sides of the link, with programs that are functions here; what Android does is played by [FakePhone]. */
@RunWith(RobolectricTestRunner::class)
@Config(sdk = [35])
class SeparateRuntimeTest {
    @get:Rule
    val folder = TemporaryFolder()

    private var script: (ScriptedProgram) -> Unit = {}
    private val contents = mutableListOf<String>()
    private val phone =
        FakePhone { form, file, memory ->
            contents += file.readText()
            ScriptedProgram(form, memory) { script(it) }
        }
    private val file by lazy { folder.newFile("part").apply { writeText("a program") } }
    private val weights = floats("w", 2)
    private val form = ProgramForm("step", listOf(weights), listOf(weights, floats("loss", 1)), listOf(0, -1))

    @Test
    fun `a program gets its file and its arguments, and what it gives is here`() {
        script = { program ->
            program.give("w", program.floats("w")[1])
            program.give("loss", 0.5f)
        }
        runtime().load(form, file).use { program ->
            program.write(0, 1f, 2f)
            program.run()
            assertEquals(listOf(2f, 2f), read(program.arguments[0]))
            assertEquals(listOf(2f, 2f), read(program.results[0]))
            assertEquals(listOf(0.5f), read(program.results[1]))
        }
        assertEquals(listOf("a program"), contents)
    }

    @Test
    fun `tensors of many megabytes pass, which no message could hold`() {
        val count = 8 shl 20
        val large = ProgramForm("large", listOf(floats("in", count)), listOf(floats("out", count)))
        script = { program ->
            program.results[0].asFloatBuffer().put(program.argument("in"))
        }
        runtime().load(large, file).use { program ->
            val given = program.arguments[0].asFloatBuffer()
            for (i in 0 until count) given.put(i, i.toFloat())
            program.run()
            val found = program.results[0].asFloatBuffer()
            assertTrue((0 until count).all { found.get(it) == it.toFloat() })
        }
    }

    @Test
    fun `an engine trains as in this process, with every program in one process that ends with the engine`() {
        val bundle = Bundle.open(Vectors.file("bundle"))
        val steps: (ScriptedProgram) -> Unit = { program ->
            when (program.form.name) {
                "step" -> program.give("classifier.bias", program.floats("classifier.bias")[0] + 2)
                "embed" -> program.give("SLOT_KIND_FEATURES", program.floats("SLOT_KIND_INPUT")[5])
            }
        }
        script = steps
        val found =
            listOf(ScriptedRuntime(run = steps), runtime()).map { runtime ->
                ProgramEngine(bundle, runtime, folder.newFolder(), CountedCrashes()).use { engine ->
                    val weights = bundle.initial().tensors
                    val features = engine.embed(FloatArray(768) { it / 768f })
                    val rows = Rows(FloatArray(32) { it.toFloat() }, longArrayOf(0, 1))
                    val batches = List(3) { intArrayOf(1, 0) }.asSequence()
                    val trained = engine.train("step", weights, rows, batches, references = mapOf("global" to weights))
                    assertEquals(if (runtime.isInProcess) 0 else 1, phone.alive.size)
                    features.asList() to trained.mapValues { (_, tensor) -> (tensor as FloatTensor).toArray().asList() }
                }
            }
        assertEquals(found[0], found[1])
        assertEquals(listOf("IsolatedProgramService"), phone.started.map { it.service })
        assertEquals(emptyList<String>(), phone.alive)
    }

    @Test
    fun `predictions have a process of their own, which outlives that of a training`() {
        val predictions = SeparateRuntime(phone, "scripted 1", mustBeIsolated = false, forPredictions = true)
        runtime().load(form, file).use { training ->
            predictions.load(form, file).use { predicting ->
                assertEquals(listOf("IsolatedProgramService", "IsolatedPredictionService"), phone.alive)
                phone.started.first().beKilled()
                predicting.run()
                assertEquals(listOf("IsolatedPredictionService"), phone.alive)
                training.run()
                assertEquals(3, phone.started.size)
            }
        }
        phone.isLenient = false
        SeparateRuntime(phone, "scripted 1", mustBeIsolated = false, forPredictions = true).load(form, file).use {
            assertEquals(listOf("PredictionService"), phone.alive)
        }
    }

    @Test
    fun `the next bundle gets a process that has run nothing`() {
        val runtime = runtime()
        val (first, second) = List(2) { runtime.load(form, file) }
        first.close()
        first.close()
        assertEquals(1, phone.alive.size)
        second.close()
        assertEquals(0, phone.alive.size)
        runtime.load(form, file).close()
        assertEquals(2, phone.started.size)
    }

    @Test
    fun `where isolated processes may open nothing, programs run with the app's rights, unless that is forbidden`() {
        phone.isLenient = false
        runtime().load(form, file).use {
            it.run()
            assertEquals(listOf("ProgramService"), phone.alive)
        }
        assertFails(Reason.RUNTIME_MISSING, "programs cannot run in an isolated process here: it cannot open") {
            runtime(mustBeIsolated = true).load(form, file)
        }
        assertEquals(emptyList<String>(), phone.alive)
    }

    @Test
    fun `a process that has run a program is not asked whether it is a prison`() {
        val runtime = runtime()
        runtime.load(form, file).close()
        // As a program would answer that wants the app's rights.
        phone.isLenient = false
        runtime.load(form, file).use { assertEquals(listOf("IsolatedProgramService"), phone.alive) }
        assertEquals(1, phone.started.sumOf { process -> process.calls.count { it == Link.PROBE } })
    }

    @Test
    fun `a process that dies in a run is a crash, and the next load gets another one`() {
        script = { phone.started.last().die() }
        val runtime = runtime()
        runtime.load(form, file).use { program ->
            assertFails(Reason.CRASHED, "program 'step' cannot be used: its process has ended: the program is") {
                program.run()
            }
        }
        script = {}
        runtime.load(form, file).use { it.run() }
        assertEquals(2, phone.started.size)
    }

    @Test
    fun `a process that dies under the programs of two clients is one crash, and the other program runs again`() {
        val bothRun = CyclicBarrier(2)
        phone.answers[Link.RUN] = { reply ->
            if (phone.started.size == 1) {
                bothRun.await()
                phone.started.single().die()
            }
            reply.writeInt(Link.Status.DONE.code)
            reply.writeString(null)
            true
        }
        val runtime = runtime()
        val outcomes =
            List(2) { runtime.load(form, file) }
                .map { program -> CompletableFuture.supplyAsync { runCatching { program.run() }.exceptionOrNull() } }
                .map { it.get(30, TimeUnit.SECONDS) }
        assertEquals(listOf(Reason.CRASHED), outcomes.filterNotNull().map { (it as EngineException).reason })
        assertEquals(2, phone.started.size)
    }

    @Test
    fun `a process that dies while a program is loaded is a crash, too`() {
        val loader = phone.loader
        phone.loader = { form, file, memory -> loader(form, file, memory).also { phone.started.last().die() } }
        assertFails(Reason.CRASHED, "its process has ended") { runtime().load(form, file) }
    }

    @Test
    fun `an idle process that Android has ended is replaced, and the arguments stay`() {
        script = { it.give("loss", it.floats("w")[0]) }
        runtime().load(form, file).use { program ->
            program.write(0, 3f, 0f)
            program.run()
            phone.started.single().beKilled()
            program.run()
            assertEquals(listOf(3f), read(program.results[1]))
        }
        assertEquals(2, phone.started.size)
        assertEquals(emptyList<String>(), phone.alive)
    }

    @Test
    fun `a program that never ends is ended`() {
        script = { phone.started.last().awaitDeath() }
        runtime(limitMs = 1_000).load(form, file).use { program ->
            assertFails(Reason.CRASHED, "its process did not answer within 1 s") { program.run() }
        }
    }

    @Test
    fun `a reply that is not as it should be ends the process`() {
        val texts = { status: Int, text: String? ->
            { reply: Parcel ->
                reply.writeInt(status)
                reply.writeString(text)
                true
            }
        }
        val strange =
            listOf<(Parcel) -> Boolean>(
                { true },
                { false },
                texts(Status.entries.size + 1, "a text"),
                texts(-1, "java.lang.SecurityException"),
                texts(Status.DONE.code, "a text"),
                texts(Status.DONE.code, ""),
                texts(Status.FAILED.code, null),
                texts(Status.FAILED.code, "x".repeat(Link.MOST_TEXT + 1)),
                { reply -> texts(Status.DONE.code, null)(reply).also { reply.writeInt(0) } },
                { reply ->
                    texts(Status.DONE.code, null)(reply)
                    ParcelFileDescriptor.open(file, ParcelFileDescriptor.MODE_READ_ONLY).writeToParcel(reply, 0)
                    true
                },
            )
        for (call in listOf(Link.LOAD, Link.RUN)) {
            for ((number, answer) in strange.withIndex()) {
                phone.answers.clear()
                phone.answers[call] = answer
                assertFails(Reason.CRASHED, "does not keep to the protocol") {
                    runtime().load(form, file).use { it.run() }
                }
                assertEquals("reply $number", emptyList<String>(), phone.alive)
            }
        }
    }

    @Test
    fun `an isolated process that comes to nothing before its first program is no crash of a bundle`() {
        phone.answers[Link.PROBE] = { true }
        assertFails(Reason.RUNTIME_MISSING, "does not keep to the protocol") {
            runtime(mustBeIsolated = true).load(form, file)
        }
        runtime().load(form, file).use { assertEquals(listOf("ProgramService"), phone.alive) }
    }

    @Test
    fun `programs that have once run isolated never run otherwise`() {
        val runtime = runtime()
        runtime.load(form, file).close()
        phone.missing = setOf("IsolatedProgramService")
        assertFails(Reason.RUNTIME_MISSING, "programs cannot run in an isolated process") { runtime.load(form, file) }
        assertEquals(emptyList<String>(), phone.alive)
    }

    @Test
    fun `what a runtime says arrives, in characters that print, and the process lives`() {
        val failures =
            listOf(
                EngineException(Reason.BUNDLE_UNUSABLE, "no operator\u0007") to "no operator?",
                EngineException(Reason.RUNTIME_MISSING, "no library") to "no library",
                OutOfMemoryError() to "a program takes more memory than there is",
                IllegalStateException("odd") to "a program cannot be used: java.lang.IllegalStateException: odd",
            )
        runtime().load(form, file).use { program ->
            for ((failure, text) in failures) {
                script = { throw failure }
                val reason = (failure as? EngineException)?.reason ?: Reason.BUNDLE_UNUSABLE
                assertFails(reason, text) { program.run() }
            }
            script = {}
            program.run()
        }
        assertEquals(1, phone.started.size)
    }

    @Test
    fun `a program that does not load leaves no process behind`() {
        phone.loader = { _, _, _ -> throw EngineException(Reason.BUNDLE_UNUSABLE, "damaged") }
        assertFails(Reason.BUNDLE_UNUSABLE, "damaged") { runtime().load(form, file) }
        assertEquals(emptyList<String>(), phone.alive)
    }

    @Test
    fun `a service that is missing or does not start is named, and is no crash`() {
        val both = setOf("IsolatedProgramService", "ProgramService")
        phone.missing = both
        assertFails(Reason.RUNTIME_MISSING, "the app's manifest must have the services") { runtime().load(form, file) }
        phone.missing = emptySet()
        phone.stuck = both
        assertFails(Reason.RUNTIME_MISSING, "it has not started within 0 s") {
            runtime(limitMs = 20).load(form, file)
        }
        phone.stuck = emptySet()
        phone.dying = both
        assertFails(Reason.RUNTIME_MISSING, "it has ended while it started") { runtime().load(form, file) }
    }

    @Test
    fun `crashes of an engine's programs are counted`() {
        script = { phone.started.last().die() }
        val crashes = CountedCrashes(most = 1)
        val engine = ProgramEngine(Bundle.open(Vectors.file("bundle")), runtime(), folder.root, crashes)
        assertFails(Reason.CRASHED, "program 'embed' cannot be used: its process has ended", "; crash 1") {
            engine.embed(FloatArray(768))
        }
        assertFails(Reason.BUNDLE_UNUSABLE, "this bundle has crashed 1 times") { engine.embed(FloatArray(768)) }
        assertEquals(1, phone.started.size)
    }

    private fun runtime(
        mustBeIsolated: Boolean = false,
        limitMs: Long = 30_000,
    ): ProgramRuntime = SeparateRuntime(phone, "scripted 1", mustBeIsolated, limitMs = limitMs)

    private fun assertFails(
        reason: Reason,
        vararg texts: String,
        work: () -> Unit,
    ) {
        val error = assertThrows(EngineException::class.java) { work() }
        assertEquals(error.message, reason, error.reason)
        for (text in texts) assertTrue(error.message, text in error.message.orEmpty())
    }

    private fun LoadedProgram.write(
        index: Int,
        vararg values: Float,
    ) {
        arguments[index].asFloatBuffer().put(values)
    }

    private fun read(buffer: ByteBuffer) = buffer.asFloatBuffer().let { floats -> List(floats.capacity(), floats::get) }

    private companion object {
        fun floats(
            name: String,
            count: Int,
        ) = TensorSpec(name, Dtype.DTYPE_FLOAT32, listOf(count.toLong()))
    }
}
