package org.fedlens.sdk.engine

import org.fedlens.sdk.EngineException
import org.junit.Assert.assertEquals
import org.junit.Assert.assertThrows
import org.junit.Assert.assertTrue
import org.junit.Rule
import org.junit.Test
import org.junit.rules.TemporaryFolder
import java.io.Closeable
import java.io.File

class TrialsTest {
    @get:Rule
    val folder = TemporaryFolder()

    private val marks by lazy { File(folder.root, "trials") }
    private val tried = mutableListOf<Closeable>()
    private var deaths = 0
    private var mayRun = true

    @Test
    fun `a program is tried once, whoever asks later`() {
        assertEquals(PROGRAM, run())
        assertEquals(PROGRAM, run())
        assertEquals(listOf(PROGRAM), tried)
    }

    @Test
    fun `while a program is tried, that stands on the disk`() {
        run { assertEquals("begun", mark().readText()) }
        assertEquals("tried", mark().readText())
    }

    @Test
    fun `a death in a trial is counted once, and then the program is tried again`() {
        die()
        assertEquals(PROGRAM, run())
        assertEquals(PROGRAM, run())
        assertEquals(1, deaths)
        assertEquals(listOf(PROGRAM), tried)
    }

    @Test
    fun `after a death a program is not loaded before it may run again, and the death is counted once`() {
        die()
        mayRun = false
        repeat(2) { assertThrows(IllegalStateException::class.java) { run() } }
        assertEquals(1, deaths)
        assertEquals(emptyList<Closeable>(), tried)
        mayRun = true
        assertEquals(PROGRAM, run())
    }

    @Test
    fun `a program that was tried is not loaded either while it may not run`() {
        run()
        mayRun = false
        assertThrows(IllegalStateException::class.java) { run() }
    }

    @Test
    fun `a program that is refused without a death is tried again`() {
        repeat(3) { assertThrows(IllegalStateException::class.java) { run { error("refused") } } }
        assertEquals(PROGRAM, run())
        assertEquals(0, deaths)
    }

    @Test
    fun `with another key, as of a newer runtime, a program is tried anew`() {
        run()
        run(ByteArray(32) { 2 })
        assertEquals(listOf(PROGRAM, PROGRAM), tried)
    }

    @Test
    fun `a program that cannot be used is closed, and leaves no mark of a death`() {
        var closed = 0
        val program = Closeable { closed++ }
        val refused: (Closeable) -> Unit = { error("refused") }
        // In the way of the last mark.
        val inTheWay: (Closeable) -> Unit = { assertTrue(mark().delete() && File(marks, KEY_NAME).mkdir()) }
        for ((trials, trial) in listOf(refused, inTheWay).withIndex()) {
            assertThrows(Exception::class.java) { run(program = program, trial = trial) }
            assertEquals(trials + 1, closed)
            assertEquals(emptyList<String>(), marks.list()?.toList())
        }
    }

    @Test
    fun `where the mark cannot be written nothing is tried`() {
        marks.writeText("a file where the folder should be")
        val error = assertThrows(EngineException::class.java) { run() }
        assertTrue(error.message, "cannot be tried" in error.message.orEmpty())
        assertEquals(emptyList<Closeable>(), tried)
    }

    private fun run(
        key: ByteArray = KEY,
        program: Closeable = PROGRAM,
        trial: (Closeable) -> Unit = tried::add,
    ) = Trials(marks) { deaths++ }.run("step", key, { check(mayRun) { "not now" } }, { program }, trial)

    /** The mark after a death of the process in a trial: the file as it was in the middle of it. */
    private fun die() {
        var left = ""
        run { left = mark().readText() }
        mark().writeText(left)
    }

    private fun mark() = checkNotNull(marks.listFiles()).first { it.name == KEY_NAME }

    private companion object {
        val KEY = ByteArray(32) { 1 }
        val PROGRAM = Closeable { error("closed") }
        val KEY_NAME = "01".repeat(32)
    }
}
