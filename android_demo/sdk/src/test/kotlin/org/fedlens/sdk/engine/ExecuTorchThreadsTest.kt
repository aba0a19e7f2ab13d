package org.fedlens.sdk.engine

import org.fedlens.sdk.EngineException
import org.junit.Assert.assertEquals
import org.junit.Assert.assertThrows
import org.junit.Rule
import org.junit.Test
import org.junit.rules.TemporaryFolder

/** The size of ExecuTorch's pool of threads, which the app's own models share. */
class ExecuTorchThreadsTest {
    @get:Rule
    val folder = TemporaryFolder()

    private val asked = ArrayList<Int>()

    @Test
    fun `it is left to ExecuTorch until the app decides, which it does once for the process`() {
        load()
        ExecuTorchRuntime.decideThreads(2)
        load()
        ExecuTorchRuntime.decideThreads(2)
        assertThrows(IllegalStateException::class.java) { ExecuTorchRuntime.decideThreads(1) }
        assertThrows(IllegalArgumentException::class.java) { ExecuTorchRuntime.decideThreads(0) }
        load()
        assertEquals(listOf(0, 2, 2), asked)
    }

    /** There is no library to load a program with; the call says what it would be loaded with. */
    private fun load() {
        val runtime =
            ExecuTorchRuntime("1", open = { _, threads ->
                asked += threads
                throw IllegalStateException("no library")
            })
        val form = ProgramForm("step", emptyList(), emptyList())
        assertThrows(EngineException::class.java) { runtime.load(form, folder.root.resolve("part")) }
    }
}
