package org.fedlens.sdk.store

import org.fedlens.jvm.JdbcDatabase
import org.junit.Assert.assertEquals
import org.junit.Assert.assertNotNull
import org.junit.Assert.assertTrue
import org.junit.Rule
import org.junit.Test
import org.junit.rules.TemporaryFolder
import java.io.File
import kotlin.random.Random

private const val STEPS = 40
private const val HALTED = "halted at "
private const val DONE = "done"

/** Carries a script out until the given number of points has been passed, says so, and waits to be killed. */
fun main(arguments: Array<String>) {
    val (folder, seed, points) = arguments
    var left = points.toInt()

    fun point(name: String) {
        if (--left == 0) {
            println(HALTED + name)
            System.`in`.read()
        }
    }
    Stores(File(folder), ::point) { PointedDatabase(JdbcDatabase.open(it), it.name, ::point) }.use { stores ->
        for (step in Script(seed.toInt(), STEPS).steps) {
            stores.run(step)
            println(DONE)
        }
    }
}

class KilledTest {
    @get:Rule
    val folder = TemporaryFolder()

    @Test
    fun `killed at twelve seeded points, every step has happened wholly or not at all, and the rest goes on`() {
        val random = Random(6)
        val halts = HashSet<String>()
        for (seed in 1..12) {
            val root = folder.newFolder("run-$seed")
            val (done, halt) = killedAt(root, seed, random.nextInt(15, 150))
            halts += halt
            val script = Script(seed, STEPS)
            open(root).use { stores ->
                val found = stores.snapshot()
                val (before, after) = script.snapshots.subList(done, done + 2)
                val step = script.steps[done]
                val message = "run $seed, killed at $halt within step $done, $step:\n$found\n$before\n$after"
                assertTrue(message, found == before || found == after)
                if (found == before) stores.run(step)
                script.steps.drop(done + 1).forEach(stores::run)
                assertEquals(script.snapshots.last(), stores.snapshot())
            }
            val left = File(root, "cache/incoming").list()
            assertEquals(emptyList<String>(), left?.toList())
        }
        assertTrue("only at $halts", halts.size >= 6)
    }

    @Test
    fun `halted at every single point, every step has happened wholly or not at all`() {
        val script = Script(seed = 20, steps = 25)
        val points =
            folder.haltAtEveryPoint({ stores -> script.steps.map { { stores.run(it) } } }) { stores, done, point ->
                val allowed = script.snapshots.subList(done, done + 2)
                assertTrue("$point within step $done, ${script.steps[done]}", stores.snapshot() in allowed)
            }
        assertTrue("$points points", points > 100)
    }

    @Test
    fun `a folder that another process has open is refused until that ends`() {
        val process = start(folder.root, seed = 1, points = 30)
        try {
            val halted = process.inputStream.bufferedReader().lineSequence().firstOrNull { it.startsWith(HALTED) }
            assertNotNull(halted)
            assertInUse { StateFolder.open(File(folder.root, "state"), SERVER, JdbcDatabase::open).close() }
        } finally {
            process.destroyForcibly().waitFor()
        }
        open(folder.root).close()
    }

    private fun open(root: File) = Stores(root) { JdbcDatabase.open(it) }

    /** The number of finished steps, and the point of death. */
    private fun killedAt(
        root: File,
        seed: Int,
        points: Int,
    ): Pair<Int, String> {
        val process = start(root, seed, points)
        try {
            val lines = process.inputStream.bufferedReader().lineSequence()
            var done = 0
            for (line in lines) {
                if (line == DONE) done++
                if (line.startsWith(HALTED)) return done to line.removePrefix(HALTED)
            }
            error("it ended after $done steps, before point $points: ${process.waitFor()}")
        } finally {
            process.destroyForcibly().waitFor()
        }
    }

    private fun start(
        root: File,
        seed: Int,
        points: Int,
    ): Process = childJvm("org.fedlens.sdk.store.KilledTestKt", root.path, "$seed", "$points")
}
