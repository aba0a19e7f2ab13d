package org.fedlens.sdk.model

import com.google.protobuf.ByteString
import org.fedlens.jvm.JdbcDatabase
import org.fedlens.proto.v1.BlobSet
import org.fedlens.proto.v1.CurrentModel
import org.fedlens.proto.v1.Difference
import org.fedlens.sdk.AssignmentException
import org.fedlens.sdk.blob.FloatTensor
import org.fedlens.sdk.store.Step
import org.fedlens.sdk.store.Stores
import org.fedlens.sdk.store.TASK
import org.fedlens.sdk.store.childJvm
import org.fedlens.sdk.store.haltAtEveryPoint
import org.fedlens.sdk.training.from
import org.junit.Assert.assertEquals
import org.junit.Assert.assertThrows
import org.junit.Assert.assertTrue
import org.junit.Rule
import org.junit.Test
import org.junit.rules.TemporaryFolder
import java.io.File

/** Announces models and chooses among them, says so after each step, and waits to be killed. */
fun main(arguments: Array<String>) {
    val (folder, count) = arguments
    Stores(File(folder)) { JdbcDatabase.open(it) }.use { stores ->
        for (step in STEPS.take(count.toInt())) {
            step(stores.models())
            println("done")
        }
        System.`in`.read()
    }
}

private fun Stores.models() = ModelStore(state, files, cache)

private fun model(number: Int): CurrentModel {
    val digest = ByteString.copyFrom(ByteArray(32) { number.toByte() })
    val set = BlobSet.newBuilder().setName("global").setSha256(digest).setSize(1)
    return CurrentModel
        .newBuilder()
        .setTask(TASK)
        .addSets(set)
        .addRules(from("global", "mine"))
        .build()
}

private fun ModelStore.announceOne(number: Int): Kept {
    announce(listOf(model(number)))
    return kept(model(number))
}

private fun ModelStore.now(): Kept = kept(announced.single())

private val STEPS: List<(ModelStore) -> Unit> =
    listOf(
        { it.announceOne(1) },
        { it.adopt(it.now().newest, isHeld = false) },
        { it.announceOne(2) },
        { it.adopt(it.now().newest, isHeld = false) },
        { it.adopt(checkNotNull(it.now().previous), isHeld = true) },
        { it.announceOne(3) },
        { it.adopt(checkNotNull(it.now().newer), isHeld = false) },
    )

/** Numbers of the models after each step; 0: none. The first is held after the fifth step, and after the sixth. */
private val PLACES =
    listOf(
        "in use 0, newer 1, previous 0",
        "in use 1, newer 0, previous 0",
        "in use 1, newer 2, previous 0",
        "in use 2, newer 0, previous 1",
        "in use 1 held, newer 2, previous 0",
        "in use 1 held, newer 3, previous 0",
        "in use 3, newer 0, previous 1",
    )

class ModelStoreTest {
    @get:Rule
    val folder = TemporaryFolder()

    private fun open(root: File) = Stores(root) { JdbcDatabase.open(it) }

    private fun number(version: Version?): Int =
        version
            ?.announced
            ?.getSets(0)
            ?.sha256
            ?.byteAt(0)
            ?.toInt() ?: 0

    private fun places(store: ModelStore): String {
        if (store.announced.isEmpty()) return "nothing"
        val kept = store.now()
        val held = if (kept.inUse?.isHeld == true) " held" else ""
        return "in use ${number(kept.inUse)}$held, newer ${number(kept.newer)}, previous ${number(kept.previous)}"
    }

    @Test
    fun `a choice survives a kill of the process`() {
        for (count in 4..6) {
            val root = folder.newFolder()
            val process = childJvm("org.fedlens.sdk.model.ModelStoreTestKt", root.path, "$count")
            try {
                val lines = process.inputStream.bufferedReader().lineSequence()
                assertEquals(count, lines.take(count).count())
            } finally {
                process.destroyForcibly().waitFor()
            }
            open(root).use { assertEquals(PLACES[count - 1], places(it.models())) }
        }
    }

    @Test
    fun `halted at every single point, a choice has happened wholly or not at all`() {
        fun begin(stores: Stores): List<() -> Unit> {
            val store = stores.models()
            return STEPS.mapIndexed { number, step ->
                {
                    step(store)
                    assertEquals(PLACES[number], places(store))
                }
            }
        }
        val points =
            folder.haltAtEveryPoint(::begin) { stores, done, point ->
                val allowed = listOf(PLACES.getOrElse(done - 1) { "nothing" }, PLACES[done])
                val found = places(stores.models())
                assertTrue("$point in step $done: $found", found in allowed)
            }
        assertTrue("$points points", points > 40)
    }

    @Test
    fun `a version keeps its client state, in files too, until it is gone`() {
        open(folder.root).use { stores ->
            val store = stores.models()
            stores.run(Step.Put(1, 5, upload = false, state = true, large = true))
            stores.run(Step.Deliver)
            store.adopt(store.announceOne(1).newest, isHeld = false)
            stores.run(Step.Put(2, 6, upload = false, state = true, large = true))
            stores.run(Step.Deliver)
            val kept = store.now()
            assertEquals(listOf(-5, -6), listOf(kept.inUse, kept.newer).map { it?.firstValue() })
            assertEquals(setOf(-5, -6), stores.snapshot().largeValues)

            store.adopt(kept.newest, isHeld = false)
            store.adopt(store.announceOne(2).newest, isHeld = false)
            stores.run(Step.Put(3, 7, upload = false, state = false, large = false))
            stores.run(Step.Deliver)
            assertEquals(setOf(-6), stores.snapshot().largeValues)
            // The first of them was the previous one of the second; it is no version without state.
            val gone = checkNotNull(kept.inUse)
            val error = assertThrows(AssignmentException::class.java) { gone.firstValue() }
            assertEquals("model ${gone.id} has been replaced; ask for models() again", error.message)
        }
    }

    @Test
    fun `an announcement of the same weights is no newer model, and brings its statement`() {
        open(folder.root).use { stores ->
            val store = stores.models()
            store.adopt(store.announceOne(1).newest, isHeld = false)
            val set = model(1).getSets(0).toBuilder().setDifference(Difference.newBuilder().setSize(5))
            val renewed = model(1).toBuilder().setSets(0, set).setStatement(ByteString.copyFromUtf8("longer"))
            val kept = store.kept(renewed.build())
            assertEquals(null, kept.newer)
            assertEquals("longer", kept.inUse?.announced?.statement?.toStringUtf8())
        }
    }

    private fun Version.firstValue(): Int {
        val tensor = checkNotNull(state("mine")).getValue("w") as FloatTensor
        return tensor.toArray()[0].toInt()
    }
}
