package org.fedlens.jvm

import org.fedlens.proto.v1.Dtype
import org.fedlens.proto.v1.ProgramFormat
import org.fedlens.sdk.Bundle
import org.fedlens.sdk.EngineException
import org.fedlens.sdk.EngineException.Reason
import org.fedlens.sdk.Manifests
import org.fedlens.sdk.Vectors
import org.fedlens.sdk.blob.TensorSpec
import org.fedlens.sdk.engine.ProgramForm
import org.junit.Assert.assertEquals
import org.junit.Assert.assertNotSame
import org.junit.Assert.assertThrows
import org.junit.Assert.assertTrue
import org.junit.Before
import org.junit.Rule
import org.junit.Test
import org.junit.rules.TemporaryFolder
import java.io.File
import java.io.InputStream
import java.lang.reflect.InvocationTargetException
import java.net.URL
import java.net.URLClassLoader
import java.nio.ByteBuffer

/** The native library with invalid arguments. */
class JniRuntimeTest {
    @get:Rule
    val folder = TemporaryFolder()

    private val bundle: Bundle = Bundle.open(Vectors.file("bundle"))
    private val file: File = program("embed")
    private val photo = TensorSpec("photo", Dtype.DTYPE_FLOAT32, listOf(1, 3, 16, 16))
    private val features = TensorSpec("features", Dtype.DTYPE_FLOAT32, listOf(1, 16))
    private val form = ProgramForm("embed", listOf(photo), listOf(features))

    private fun program(name: String) =
        bundle.part(Manifests.programPart(bundle.manifest, name, ProgramFormat.PROGRAM_FORMAT_PTE))

    @Before
    fun aRuntimeIsThere() = PhoneNumbers.assumeRuntime()

    @Test
    fun `a file that is cut anywhere is refused`() {
        val raw = file.readBytes()
        for (length in listOf(0, 8, 64, raw.size / 2, raw.size - 64)) {
            assertRefused("program 'embed' cannot be used: ") { JniRuntime().load(form, written(raw.copyOf(length))) }
        }
    }

    @Test
    fun `tensors of another shape, type or number than the program's are refused`() {
        val forms =
            listOf(
                ProgramForm("embed", listOf(photo.copy(shape = listOf(1, 3, 16, 17))), listOf(features)),
                ProgramForm("embed", listOf(photo.copy(shape = listOf(3, 16, 16))), listOf(features)),
                ProgramForm("embed", listOf(photo), listOf(features.copy(dtype = Dtype.DTYPE_INT64))),
                ProgramForm("embed", listOf(photo, photo), listOf(features)),
                ProgramForm("embed", listOf(photo), listOf()),
            )
        for (other in forms) assertRefused("than its manifest says") { JniRuntime().load(other, file) }
    }

    @Test
    fun `an operator that the runtime does not have is named`() {
        val raw = program("step").readBytes()
        val text = String(raw, Charsets.ISO_8859_1).replace("aten::arange", "aten::arangx")
        val step = Manifests.program(bundle.manifest, "step")
        val (inputs, outputs) =
            listOf(step.inputsList, step.outputsList).map { slots ->
                slots.map { TensorSpec(it.name, it.dtype, it.shapeList) }
            }
        assertRefused("has no operator aten::arangx") {
            JniRuntime().load(ProgramForm("step", inputs, outputs), written(text.toByteArray(Charsets.ISO_8859_1)))
        }
    }

    @Test
    fun `a closed program does not run, and closing it again does nothing`() {
        val program = JniRuntime().load(form, file)
        program.run()
        program.close()
        program.close()
        assertThrows(IllegalStateException::class.java) { program.run() }
        program.arguments[0].putFloat(0, 1f)
    }

    @Test
    fun `programs of one file do not share memory`() {
        JniRuntime().load(form, file).use { first ->
            JniRuntime().load(form, file).use { second ->
                first.run()
                val before = floats(first.results[0])
                for (i in 0 until 768) second.arguments[0].putFloat(4 * i, i / 768f)
                second.run()
                assertEquals(before, floats(first.results[0]))
                assertTrue(before != floats(second.results[0]))
            }
        }
    }

    @Test
    fun `another class loader, as Robolectric's, loads the library too`() {
        OwnClasses { true }.use { loader ->
            val other = loader.loadClass(JniRuntime::class.java.name).getDeclaredConstructor().newInstance()
            assertNotSame(JniRuntime::class.java, other.javaClass)
            assertEquals(JniRuntime().version, other.javaClass.getMethod("getVersion").invoke(other))
        }
    }

    @Test
    fun `without its library the runtime says what is missing`() {
        OwnClasses { !it.endsWith(".so") }.use { loader ->
            val other = loader.loadClass(JniRuntime::class.java.name).getDeclaredConstructor().newInstance()
            val version = other.javaClass.getMethod("getVersion")
            val thrown = assertThrows(InvocationTargetException::class.java) { version.invoke(other) }
            val error = thrown.targetException as EngineException
            assertEquals(Reason.RUNTIME_MISSING, error.reason)
            val text = error.message.orEmpty()
            assertTrue(
                text,
                text.startsWith("ExecuTorch's runtime for the JVM is missing: it is not on the class path"),
            )
        }
    }

    private fun floats(buffer: ByteBuffer) = buffer.asFloatBuffer().let { all -> List(all.capacity(), all::get) }

    private fun written(content: ByteArray): File = folder.newFile().apply { writeBytes(content) }

    private fun assertRefused(
        text: String,
        action: () -> Any,
    ) {
        val error = assertThrows(EngineException::class.java) { action() }
        assertEquals(Reason.BUNDLE_UNUSABLE, error.reason)
        assertTrue(error.message, text in error.message.orEmpty())
    }

    /** Loads the classes of this module itself, and finds those of its resources that are [visible]. */
    private class OwnClasses(
        private val visible: (String) -> Boolean,
    ) : URLClassLoader(
            arrayOf(JniRuntime::class.java.protectionDomain.codeSource.location),
            JniRuntimeTest::class.java.classLoader,
        ) {
        override fun loadClass(
            name: String,
            resolve: Boolean,
        ): Class<*> =
            if (name.startsWith("org.fedlens.jvm.")) {
                findLoadedClass(name) ?: findClass(name)
            } else {
                super.loadClass(name, resolve)
            }

        override fun getResource(name: String): URL? = if (visible(name)) super.getResource(name) else null

        override fun getResourceAsStream(name: String): InputStream? =
            if (visible(name)) super.getResourceAsStream(name) else null
    }
}
