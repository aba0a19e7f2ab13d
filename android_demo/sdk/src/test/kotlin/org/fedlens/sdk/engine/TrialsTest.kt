package org.fedlens.sdk.engine

import org.fedlens.sdk.EngineException
import org.junit.Assert.assertEquals
import org.junit.Assert.assertThrows
import org.junit.Assert.assertTrue
import org.junit.Rule
import org.junit.Test
import org.junit.rules.TemporaryFolder
import java.io.File
import java.util.concurrent.TimeUnit

class TrialsTest {
    @get:Rule
    val folder = TemporaryFolder()

    private val marks by lazy { File(folder.root, "trials") }
    private val tried = mutableListOf<String>()

    @Test
    fun `a program is tried once, whoever asks later`() {
        assertEquals("loaded", run())
        assertEquals("loaded", run())
        assertEquals(listOf("loaded"), tried)
    }

    @Test
    fun `while a program is tried, that stands on the disk`() {
        Trials(marks).run("step", KEY, { "loaded" }) { assertEquals("!", mark().readText()) }
        assertEquals("tried", mark().readText())
    }

    @Test
    fun `after one death in its trial a program is tried again`() {
        die()
        assertEquals("loaded", run())
        assertEquals(listOf("loaded"), tried)
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
        assertEquals(emptyList<String>(), tried)
    }

    @Test
    fun `a day after its last death a program gets one more try`() {
        die()
        die()
        waitADay()
        die()
        assertThrows(EngineException::class.java) { run() }
        waitADay()
        assertEquals("loaded", run())
    }

    @Test
    fun `a program that is refused without a death is tried again`() {
        repeat(3) {
            assertThrows(IllegalStateException::class.java) {
                Trials(marks).run("step", KEY, { "loaded" }) { error("refused") }
            }
        }
        assertEquals("loaded", run())
    }

    @Test
    fun `with another key, as of a newer runtime, a refused program is tried anew`() {
        die()
        die()
        assertEquals("loaded", run(ByteArray(32) { 2 }))
    }

    @Test
    fun `where the mark cannot be written nothing is tried`() {
        marks.writeText("a file where the folder should be")
        val error = assertThrows(EngineException::class.java) { run() }
        assertTrue(error.message, "cannot be tried" in error.message.orEmpty())
        assertEquals(emptyList<String>(), tried)
    }

    private fun run(key: ByteArray = KEY) = Trials(marks).run("step", key, { "loaded" }, tried::add)

    /** What is left when the process ends in the trial: the file as it was in the middle of it. */
    private fun die() {
        var left = ""
        Trials(marks).run("step", KEY, { "loaded" }) { left = mark().readText() }
        mark().writeText(left)
    }

    private fun waitADay() = assertTrue(mark().setLastModified(mark().lastModified() - TimeUnit.DAYS.toMillis(1)))

    private fun mark() = checkNotNull(marks.listFiles()).first { it.name == KEY_NAME }

    private companion object {
        val KEY = ByteArray(32) { 1 }
        val KEY_NAME = "01".repeat(32)
    }
}
