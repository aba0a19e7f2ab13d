package org.fedlens.sdk.client

import org.fedlens.jvm.JdbcDatabase
import org.fedlens.sdk.Bundle
import org.fedlens.sdk.ClientConfiguration
import org.fedlens.sdk.ClientSettings
import org.fedlens.sdk.ClientSettings.Isolation
import org.fedlens.sdk.EngineException
import org.fedlens.sdk.EngineException.Reason
import org.fedlens.sdk.Platform
import org.fedlens.sdk.Publishers
import org.fedlens.sdk.Vectors
import org.fedlens.sdk.album.Examples
import org.fedlens.sdk.engine.CountedCrashes
import org.fedlens.sdk.engine.ProgramRuntime
import org.fedlens.sdk.engine.ScriptedRuntime
import org.fedlens.sdk.photo.PhotoDecoder
import org.junit.Assert.assertEquals
import org.junit.Assert.assertThrows
import org.junit.Rule
import org.junit.Test
import org.junit.rules.TemporaryFolder
import java.io.File

class IsolationTest {
    @get:Rule
    val folder = TemporaryFolder()

    private val here = ScriptedRuntime("here")
    private val separate = ScriptedRuntime("separate", isInProcess = false)
    private val isolated = ScriptedRuntime("isolated", isInProcess = false)

    @Test
    fun `programs run in another process unless the app forbids it`() {
        assertEquals(listOf("separate"), used(ClientSettings(Publishers.TrustServer).isolation))
        assertEquals(listOf("isolated"), used(Isolation.REQUIRED))
        assertEquals(listOf("here"), used(Isolation.NONE))
    }

    @Test
    fun `where there is no other process they run in this one, or not at all`() {
        assertEquals(listOf("here"), used(Isolation.WHERE_POSSIBLE, hasOthers = false))
        val error = assertThrows(EngineException::class.java) { used(Isolation.REQUIRED, hasOthers = false) }
        assertEquals(Reason.RUNTIME_MISSING, error.reason)
    }

    /** Versions of the runtimes in which an engine's program was loaded. */
    private fun used(
        isolation: Isolation,
        hasOthers: Boolean = true,
    ): List<String> {
        val configuration =
            ClientConfiguration(
                "https://fl.example.org",
                folder.newFolder(),
                { Examples(emptyList()) },
                Places(hasOthers),
                ClientSettings(Publishers.TrustServer, isolation = isolation),
            )
        val bundle = Bundle.open(Vectors.file("bundle"))
        val all = listOf(here, separate, isolated)
        all.forEach { it.loaded.clear() }
        configuration.engineOf(bundle, folder.newFolder(), CountedCrashes(), false).use { it.embed(FloatArray(768)) }
        return all.filter { it.loaded.isNotEmpty() }.map { it.version }
    }

    private inner class Places(
        private val hasOthers: Boolean,
    ) : Platform {
        override val runtime: ProgramRuntime get() = here

        override fun separateRuntime(
            mustBeIsolated: Boolean,
            forPredictions: Boolean,
        ) = (if (mustBeIsolated) isolated else separate).takeIf { hasOthers }

        override val decoder get() = PhotoDecoder { error("there are no photos") }

        override fun openDatabase(file: File) = JdbcDatabase.open(file)
    }
}
