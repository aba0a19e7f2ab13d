package org.fedlens.sdk.model

import com.google.protobuf.ByteString
import kotlinx.coroutines.CoroutineStart
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.launch
import kotlinx.coroutines.runBlocking
import org.fedlens.proto.v1.Dtype
import org.fedlens.sdk.AGREED
import org.fedlens.sdk.Event
import org.fedlens.sdk.blob.BlobWriter
import org.fedlens.sdk.blob.FloatTensor
import org.fedlens.sdk.store.FeatureSpace
import org.fedlens.sdk.toHex
import org.fedlens.sdk.training.Requirements
import org.fedlens.sdk.training.SummingBundle
import org.fedlens.sdk.training.SummingEngine
import org.fedlens.sdk.training.TestClient
import org.fedlens.sdk.training.from
import org.junit.After
import org.junit.Assert.assertEquals
import org.junit.Assert.assertTrue
import org.junit.Rule
import org.junit.Test
import org.junit.rules.TemporaryFolder
import java.util.concurrent.CountDownLatch

/** The choice between models of two bundles: one for cats and dogs, and one for cats and cows. */
class ModelChoiceTest {
    @get:Rule
    val folder = TemporaryFolder()

    private val dogs = SummingBundle()
    private val cows = SummingBundle(classNames = listOf("cat", "cow"))
    private var onEngine: () -> Unit = {}
    private val client by lazy {
        TestClient(folder.root, dogs, engineOf = { SummingEngine(it).also { onEngine() } })
    }
    private val adopted = ArrayList<Event>()

    @After
    fun close() = client.close()

    private fun choice(adoption: Adoption) =
        ModelChoice(client.models, client.predictor, client.album, adoption, { false }) { adopted += it }

    private fun announce(
        bundle: SummingBundle,
        bias: Float = 0f,
    ) {
        client.serve(bundle)
        client.put("global", BlobWriter.encode(weights(bias)))
        client.models.announce(listOf(client.model()))
    }

    /** What is red is of the first class, what is blue of the second. */
    private fun weights(bias: Float) =
        mapOf(
            "fc.bias" to FloatTensor.of(listOf(2), floatArrayOf(0f, bias)),
            "fc.weight" to FloatTensor.of(listOf(2, 3), floatArrayOf(1f, 0f, 0f, 0f, 0f, 1f)),
        )

    private fun ModelChoice.predicted(label: String): String {
        val photo = client.album.photos.first { it.label == label }
        return runBlocking { predict({ features(photo.file.readBytes()) }, null) }.maxBy { it.value }.key
    }

    @Test
    fun `models of different classes are counted on the same photos, and an unknown class counts as wrong`() {
        val choice = choice(Adoption.IF_BETTER)
        client.album.add("cat", 5)
        client.album.add("dog", 5)
        client.album.add("cow", 10, first = 5)
        client.album.add("hen", 5, first = 15)
        announce(dogs)
        choice.predicted("cat")
        announce(cows)
        runBlocking { choice.settle() }
        val models = runBlocking { choice.models(null) }
        val (old, new) = checkNotNull(models.previous) to checkNotNull(models.inUse)
        // One cat, one dog and two cows are test photos; no model knows the hen.
        assertEquals(listOf(TestResult(2, 4), TestResult(3, 4)), listOf(old.result, new.result))
        assertEquals(listOf(2, 1), listOf(new.gainsOver(old), old.gainsOver(new)))
        assertEquals(listOf("cat", "dog") to listOf("cat", "cow"), old.classNames to new.classNames)
        assertEquals(listOf<Event>(Event.ModelAdopted(7)), adopted)

        // Other photos than those of the last test of the other model.
        client.album.add("cow", 5, first = 30)
        announce(cows, bias = 0.5f)
        val later = runBlocking { choice.testModels(null) }
        assertEquals(TestResult(4, 5), later.newer?.result)
        assertEquals(null, old.gainsOver(checkNotNull(later.newer)))
    }

    @Test
    fun `a newer model is tested once, until there are other photos or another model`() {
        fun tests(adoption: Adoption = Adoption.IF_BETTER): Int {
            val before = client.engines.sumOf { it.predicted }
            // A choice of its own each time, as after a restart.
            runBlocking { choice(adoption).settle() }
            return client.engines.sumOf { it.predicted } - before
        }
        client.album.add("cat", 5)
        client.album.add("dog", 5)
        announce(dogs)
        choice(Adoption.IF_BETTER).predicted("cat")
        // It takes every photo for a dog.
        announce(dogs, bias = 9f)
        assertEquals(listOf(2, 0, 0), List(3) { tests() })
        client.album.add("dog", 5, first = 10)
        assertEquals(listOf(2, 0), List(2) { tests() })
        announce(dogs, bias = 8f)
        assertEquals(listOf(2, 0), List(2) { tests() })
        assertEquals(emptyList<Event>(), adopted)
    }

    @Test
    fun `a newer model that the app has tested is adopted without another test, if it may still be used`() {
        client.album.add("cow", 5)
        announce(dogs)
        val choice = choice(Adoption.IF_BETTER)
        choice.predicted("cow")
        announce(cows)
        runBlocking { choice.testModels(null) }
        val tests = client.engines.sumOf { it.predicted }
        client.policy = AGREED.copy(bundles = setOf(dogs.id.toHex()))
        runBlocking { choice.settle() }
        assertEquals(emptyList<Event>(), adopted)
        client.policy = AGREED
        runBlocking { choice.testModels(null) }
        val again = client.engines.sumOf { it.predicted }
        assertTrue(again > tests)
        runBlocking { choice.settle() }
        assertEquals(again, client.engines.sumOf { it.predicted })
        assertEquals(listOf<Event>(Event.ModelAdopted(7)), adopted)
    }

    @Test
    fun `a chosen model that must not be used any more gives way to the newest`() {
        val choice = choice(Adoption.WHEN_TOLD)
        client.album.add("cow", 5)
        announce(dogs)
        assertEquals("dog", choice.predicted("cow"))
        announce(cows)
        runBlocking { choice.adopt(checkNotNull(choice.models(null).inUse)) }
        assertEquals("dog", choice.predicted("cow"))
        client.policy = AGREED.copy(bundles = setOf(cows.id.toHex()))
        assertEquals("cow", choice.predicted("cow"))
        client.policy = AGREED
        assertEquals("cow", choice.predicted("cow"))
        assertEquals(1, adopted.size)
    }

    @Test
    fun `a round that ends during a prediction takes its version away, and the next one predicts`() {
        val choice = choice(Adoption.ALWAYS)
        client.album.add("cow", 1)
        announce(dogs)
        val own = client.model(rule = from("global", "mine"))
        client.models.announce(listOf(own))
        deliver(round = 1, bias = 9f)
        client.models.kept(own)
        onEngine = {
            // On the client's thread, while the version that predicts has been chosen.
            onEngine = {}
            deliver(round = 2, bias = -9f)
            client.models.kept(own)
        }
        assertEquals("cat", choice.predicted("cow"))
    }

    private fun deliver(
        round: Long,
        bias: Float,
    ) {
        val stored = client.files.store(weights(bias), Dtype.DTYPE_FLOAT32)
        client.state.transaction { db ->
            client.clientState.put(db, 7, round, mapOf("mine" to stored))
            client.clientState.makeCurrent(db, 7, round)
        }
    }

    @Test
    fun `features of photos that are gone are dropped after a test that computes them`() {
        client.album.add("cat", 5)
        announce(dogs)
        val choice = choice(Adoption.ALWAYS)
        val isTesting = CountDownLatch(1)
        val mayGoOn = CountDownLatch(1)
        onEngine = {
            isTesting.countDown()
            mayGoOn.await()
        }
        val photos = client.album.photos.map { ByteString.copyFrom(it.entry.photo) }
        runBlocking(Dispatchers.Default) {
            launch { choice.testModels(null) }
            isTesting.await()
            val dropping = launch(start = CoroutineStart.UNDISPATCHED) { client.predictor.dropFeatures(photos) }
            mayGoOn.countDown()
            dropping.join()
        }
        assertEquals(1, client.engines.sumOf { it.embedded })
        val space = FeatureSpace.of(dogs.manifest, Requirements.FORMAT)
        assertEquals(emptyMap<Any, Any>(), client.features.get(space, photos))
    }

    @Test
    fun `what predicts is known to the cache, with its programs`() {
        val choice = choice(Adoption.ALWAYS)
        client.album.add("cat", 5)
        announce(dogs)
        choice.predicted("cat")
        val needs = checkNotNull(client.models.kept(client.model()).inUse).needs
        val programs =
            dogs.manifest.programsList
                .filter { it.name in setOf("embed", "predict") }
                .flatMap { program -> program.filesList.map { it.sha256 } }
        val sets = client.sets.values
        assertTrue(needs.containsAll(programs + sets + listOf(ByteString.copyFrom(dogs.id))))
    }
}
