package org.fedlens.sdk.engine.child

import android.content.ComponentName
import android.content.Intent
import android.os.Build
import android.os.Process
import org.fedlens.proto.v1.Dtype
import org.fedlens.sdk.AndroidPlatform
import org.fedlens.sdk.blob.TensorSpec
import org.fedlens.sdk.engine.ProgramForm
import org.fedlens.sdk.engine.ScriptedProgram
import org.junit.Assert.assertEquals
import org.junit.Assert.assertFalse
import org.junit.Assert.assertTrue
import org.junit.Rule
import org.junit.Test
import org.junit.rules.TemporaryFolder
import org.junit.runner.RunWith
import org.robolectric.Robolectric
import org.robolectric.RobolectricTestRunner
import org.robolectric.RuntimeEnvironment
import org.robolectric.Shadows.shadowOf
import org.robolectric.annotation.Config
import org.robolectric.shadows.ShadowApplication
import org.robolectric.shadows.ShadowProcess
import org.robolectric.util.ReflectionHelpers

@RunWith(RobolectricTestRunner::class)
@Config(sdk = [35])
class ProgramServiceTest {
    @get:Rule
    val folder = TemporaryFolder()

    @Test
    fun `what is bound to the service runs its programs, and the process ends with it`() {
        val app = RuntimeEnvironment.getApplication()
        val controller = Robolectric.buildService(Doubling::class.java).create()
        for (service in listOf(IsolatedProgramService::class.java, ProgramService::class.java)) {
            val name = ComponentName(app, service)
            val binder = controller.get().onBind(null)
            shadowOf(app).setComponentNameAndServiceForBindServiceForIntent(Intent(app, service), name, binder)
        }
        val one = TensorSpec("w", Dtype.DTYPE_FLOAT32, listOf(1))
        val form = ProgramForm("step", listOf(one), listOf(one), listOf(0))
        val runtime = SeparateRuntime(app, "scripted 1", mustBeIsolated = false)
        runtime.load(form, folder.newFile()).use { program ->
            program.arguments[0].asFloatBuffer().put(0, 3f)
            repeat(2) { program.run() }
            assertEquals(12f, program.arguments[0].asFloatBuffer().get(0))
            assertEquals(1, shadowOf(app).boundServiceConnections.size)
        }
        assertEquals(0, shadowOf(app).boundServiceConnections.size)
        controller.destroy()
        assertTrue(ShadowProcess.wasKilled(Process.myPid()))
    }

    @Test
    fun `a process for programs knows that it is one`() {
        assertFalse(AndroidPlatform.isProgramProcess())
        ShadowApplication.setProcessName("org.example.app:fedlens")
        assertTrue(AndroidPlatform.isProgramProcess())
        ShadowApplication.setProcessName("org.example.app:other")
        assertFalse(AndroidPlatform.isProgramProcess())
        ShadowProcess.setIsIsolated()
        assertTrue(AndroidPlatform.isProgramProcess())
    }

    @Test
    fun `before Android 11 there is no other process`() {
        val platform = AndroidPlatform(RuntimeEnvironment.getApplication())
        val here = Build.VERSION.SDK_INT
        for ((level, isThere) in listOf(Build.VERSION_CODES.Q to false, Build.VERSION_CODES.R to true)) {
            ReflectionHelpers.setStaticField(Build.VERSION::class.java, "SDK_INT", level)
            try {
                assertEquals(isThere, platform.separateRuntime(mustBeIsolated = true, forPredictions = true) != null)
            } finally {
                ReflectionHelpers.setStaticField(Build.VERSION::class.java, "SDK_INT", here)
            }
        }
    }

    internal class Doubling : ProgramService() {
        override fun binder() =
            ProgramBinder({ form, _, memory -> ScriptedProgram(form, memory) { it.give("w", it.floats("w")[0] * 2) } })
    }
}
