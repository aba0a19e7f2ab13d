package org.fedlens.sdk.store

import org.fedlens.jvm.JdbcDatabase
import org.fedlens.sdk.toHex
import org.junit.After
import org.junit.Assert.assertEquals
import org.junit.Assert.assertNull
import org.junit.Assert.assertTrue
import org.junit.Before
import org.junit.Rule
import org.junit.Test
import org.junit.rules.TemporaryFolder
import java.io.File

class CrashesTest {
    @get:Rule
    val temporary = TemporaryFolder()

    private var nowS = 1e9
    private lateinit var state: StateFolder
    private val crashes get() = Crashes(state) { nowS }
    private val bundle = ByteArray(32)
    private val name = "bundle ${bundle.toHex().take(12)}"

    @Before
    fun open() {
        state = StateFolder.open(File(temporary.root, "state"), "https://fl.example.org", JdbcDatabase::open)
    }

    @After
    fun close() = state.close()

    @Test
    fun `the pause doubles with each crash up to a day`() {
        val pauses =
            List(13) {
                crashes.note(bundle)
                generateSequence { crashes.refusal(bundle)?.also { nowS += 60 } }.count()
            }
        // In minutes; the last two would be 34 and 68 hours.
        assertEquals(listOf(1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 1440, 1440), pauses)
    }

    @Test
    fun `the text says how often and when it may run again`() {
        assertEquals("$name has ended its process once, and may run again in 1 min", crashes.note(bundle))
        assertEquals("$name has ended its process 2 times, and may run again in 2 min", crashes.note(bundle))
        nowS += 59
        assertEquals("$name has ended its process 2 times, and may run again in 2 min", crashes.refusal(bundle))
    }

    @Test
    fun `after the twentieth crash a bundle never runs again, and another does`() {
        repeat(19) { crashes.note(bundle) }
        nowS += 1000 * HOUR
        assertNull(crashes.refusal(bundle))
        crashes.note(bundle)
        nowS += 1000 * HOUR
        val refusal = crashes.refusal(bundle).orEmpty()
        assertTrue(refusal, refusal.endsWith("20 times, and does not run here again: export another bundle"))
        assertNull(crashes.refusal(ByteArray(32) { 1 }))
    }

    @Test
    fun `crashes are counted over restarts and enrolments`() {
        crashes.note(bundle)
        state.reset()
        state.close()
        open()
        assertTrue("once" in crashes.refusal(bundle).orEmpty())
    }

    @Test
    fun `a clock that was set back lengthens no pause`() {
        crashes.note(bundle)
        nowS -= 1000 * HOUR
        assertTrue(crashes.refusal(bundle).orEmpty().endsWith("may run again in 1 min"))
    }

    private companion object {
        const val HOUR = 3600.0
    }
}
