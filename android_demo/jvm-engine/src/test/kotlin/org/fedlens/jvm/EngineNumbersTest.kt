package org.fedlens.jvm

import org.fedlens.sdk.blob.FloatTensor
import org.fedlens.sdk.blob.Tensor
import org.fedlens.sdk.content
import org.fedlens.sdk.engine.CountedCrashes
import org.fedlens.sdk.engine.ProgramEngine
import org.fedlens.sdk.engine.Rows
import org.fedlens.sdk.engine.Views
import org.fedlens.sdk.floats
import org.fedlens.sdk.ints
import org.fedlens.sdk.list
import org.fedlens.sdk.longs
import org.fedlens.sdk.tensors
import org.junit.Assert.assertArrayEquals
import org.junit.Assert.assertEquals
import org.junit.Assert.assertTrue
import org.junit.Assume.assumeTrue
import org.junit.Rule
import org.junit.Test
import org.junit.rules.TemporaryFolder
import org.junit.runner.RunWith
import org.junit.runners.Parameterized

/** Results of Python's ExecuTorch engine, computed again: the same bits. */
@RunWith(Parameterized::class)
class EngineNumbersTest(
    private val name: String,
) {
    @get:Rule
    val folder = TemporaryFolder()

    private val case by lazy { PhoneNumbers.case(name) }
    private val numbers get() = case.numbers

    @Test
    fun `features are the same bits as in Python`() {
        val photos = rows("photos")
        engine().use { engine -> assertSame("features", photos.flatMap { engine.embed(it).asList() }) }
    }

    @Test
    fun `views are the same bits as in Python`() {
        assumeTrue("this case has no views", case.bundle.manifest.views > 0)
        val found = engine().use { it.view(numbers["photos"].floats(), numbers["uniforms"].floats()) }
        assertSame("views", found.asList())
    }

    @Test
    fun `an extractor gives the same bits as in Python`() {
        assumeTrue("this case has no extractors", case.bundle.manifest.concatenated > 0)
        val found = engine().use { it.extract(numbers.tensors("extractor"), numbers["extract_inputs"].floats()) }
        assertSame("extracted", found.asList())
    }

    @Test
    fun `losses and trained weights are the same bits as in Python, twice`() {
        engine().use { engine ->
            // What one training leaves behind must not reach the next one.
            repeat(2) {
                val losses = mutableListOf<Float>()
                val trained = train(engine, losses::add)
                assertSame("losses", losses)
                assertEquals(numbers.tensors("trained").content(), trained.content())
            }
        }
    }

    @Test
    fun `trained weights are those of torch within 1e-5`() {
        val expected = numbers.getAsJsonObject("torch").tensors("trained")
        val trained = engine().use(::train)
        assertEquals(expected.keys, trained.keys)
        for ((tensor, values) in expected) {
            val (wanted, found) = listOf(values, trained.getValue(tensor)).map { (it as FloatTensor).toArray() }
            assertArrayEquals(tensor, wanted, found, 1e-5f)
        }
    }

    @Test
    fun `logits are the same bits as in Python`() {
        val trained = numbers.tensors("trained")
        val found = engine().use { it.predict(trained, numbers["inputs"].floats()) }
        assertSame("logits", found.asList())
    }

    private fun engine() = ProgramEngine(case.bundle, JniRuntime(), folder.root, CountedCrashes())

    private fun train(
        engine: ProgramEngine,
        onStep: (Float) -> Unit = {},
    ): Map<String, Tensor> {
        val views = numbers["views_of_rows"].floats()
        val labels = numbers["labels"].longs()
        val given = StoredViews(views, views.size / labels.size).takeIf { case.bundle.manifest.views > 0 }
        val batches = numbers.list("batches").map { it.asJsonArray.ints().toIntArray() }
        val hyper = numbers.getAsJsonObject("hyper")
        val references = numbers.getAsJsonObject("references")
        return engine.train(
            "step",
            numbers.tensors("weights"),
            Rows(numbers["inputs"].floats(), labels, given),
            batches.asSequence(),
            hyper.keySet().associateWith { hyper[it].asDouble },
            references.keySet().associateWith { references.tensors(it) },
            null,
            onStep,
        )
    }

    private fun rows(key: String): List<FloatArray> {
        val shape = numbers.getAsJsonObject(key).list("shape").ints()
        val all = numbers[key].floats()
        val width = all.size / shape[0]
        return List(shape[0]) { all.copyOfRange(it * width, (it + 1) * width) }
    }

    private fun assertSame(
        key: String,
        found: List<Float>,
    ) {
        val expected = numbers[key].floats()
        assertTrue(expected.isNotEmpty())
        assertEquals(expected.map { it.toRawBits() }, found.map { it.toRawBits() })
    }

    companion object {
        @JvmStatic
        @Parameterized.Parameters(name = "{0}")
        fun cases() = listOf("cross_entropy", "classifier_proximal", "supcon", "concatenated", "proximal_int8")
    }
}

/** Precomputed views, row after row. */
class StoredViews(
    private val views: FloatArray,
    override val width: Int,
) : Views {
    override fun take(
        rows: IntArray,
        into: FloatArray,
    ) {
        for ((at, row) in rows.withIndex()) views.copyInto(into, at * width, row * width, (row + 1) * width)
    }
}
