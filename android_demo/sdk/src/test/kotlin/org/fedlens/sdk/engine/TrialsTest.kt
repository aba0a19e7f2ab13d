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
import java.util.concurrent.TimeUnit

class TrialsTest {
    @get:Rule
    val folder = TemporaryFolder()

    private val marks by lazy { File(folder.root, "trials") }
    private val tried = mutableListOf<Closeable>()

    @Test
    fun `a program is tried once, whoever asks later`() {
        assertEquals(PROGRAM, run())
        assertEquals(PROGRAM, run())
        assertEquals(listOf(PROGRAM), tried)
    }

    @Test
    fun `while a program is tried, that stands on the disk`() {
        Trials(marks).run("step", KEY, { PROGRAM }) { assertEquals("!", mark().readText()) }
        assertEquals("tried", mark().readText())
    }

    @Test
    fun `after one death in its trial a program is tried again`() {
        die()
        assertEquals(PROGRAM, run())
        assertEquals(listOf(PROGRAM), tried)
    }

    @Test
    fun `after two deaths in its trial a program is refused by name and never run`() {
        die()
        die()
        val error = assertThrows(EngineException::class.java) { run() }
        assertEquals(EngineException.Reason.BUNDLE_UNUSABLE, error.reason)
        assertTrue(
            error.message,
            error.message.orEmpty().startsWith("program 'step' cannot be used: the process ended 2 times"),
        )
        assertEquals(emptyList<Closeable>(), tried)
    }

    @Test
    fun `a day after its last death a program gets one more try`() {
        die()
        die()
        waitADay()
        die()
        assertThrows(EngineException::class.java) { run() }
        waitADay()
        assertEquals(PROGRAM, run())
    }

    @Test
    fun `a program that is refused without a death is tried again`() {
        repeat(3) {
            assertThrows(IllegalStateException::class.java) {
                Trials(marks).run("step", KEY, { PROGRAM }) { error("refused") }
            }
        }
        assertEquals(PROGRAM, run())
    }

    @Test
    fun `with another key, as of a newer runtime, a refused program is tried anew`() {
        die()
        die()
        assertEquals(PROGRAM, run(ByteArray(32) { 2 }))
    }

    @Test
    fun `a program that cannot be used is closed, and leaves no mark of a death`() {
        var closed = 0
        val program = Closeable { closed++ }
        val refused: (Closeable) -> Unit = { error("refused") }
        // In the way of the last mark.
        val inTheWay: (Closeable) -> Unit = { assertTrue(mark().delete() && File(marks, KEY_NAME).mkdir()) }
        for ((trials, trial) in listOf(refused, inTheWay).withIndex()) {
            assertThrows(Exception::class.java) { Trials(marks).run("step", KEY, { program }, trial) }
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

    private fun run(key: ByteArray = KEY) = Trials(marks).run("step", key, { PROGRAM }, tried::add)

    /** The mark after a death of the process in a trial: the file as it was in the middle of it. */
    private fun die() {
        var left = ""
        Trials(marks).run("step", KEY, { PROGRAM }) { left = mark().readText() }
        mark().writeText(left)
    }

    private fun waitADay() = assertTrue(mark().setLastModified(mark().lastModified() - TimeUnit.DAYS.toMillis(1)))

    private fun mark() = checkNotNull(marks.listFiles()).first { it.name == KEY_NAME }

    private companion object {
        val KEY = ByteArray(32) { 1 }
        val PROGRAM = Closeable { error("closed") }
        val KEY_NAME = "01".repeat(32)
    }
}
