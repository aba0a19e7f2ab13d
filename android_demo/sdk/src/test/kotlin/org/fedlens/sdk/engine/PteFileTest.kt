package org.fedlens.sdk.engine

import org.fedlens.proto.v1.Dtype
import org.fedlens.proto.v1.ProgramFormat
import org.fedlens.sdk.Bundle
import org.fedlens.sdk.EngineException
import org.fedlens.sdk.Manifests
import org.fedlens.sdk.Vectors
import org.fedlens.sdk.blob.TensorSpec
import org.fedlens.sdk.orNamedError
import org.junit.Assert.assertEquals
import org.junit.Assert.assertThrows
import org.junit.Assert.assertTrue
import org.junit.Rule
import org.junit.Test
import org.junit.rules.TemporaryFolder
import java.nio.ByteBuffer
import java.nio.ByteOrder
import java.util.Random

class PteFileTest {
    @get:Rule
    val folder = TemporaryFolder()

    private val bundle = Bundle.open(Vectors.file("bundle"))
    private val form = Slots(Manifests.program(bundle.manifest, "predict")).form
    private val raw = file("predict").readBytes()

    private fun file(program: String) =
        bundle.part(Manifests.programPart(bundle.manifest, program, ProgramFormat.PROGRAM_FORMAT_PTE))

    @Test
    fun `every program of the vectors is what its manifest says`() {
        for (program in bundle.manifest.programsList) {
            PteFile.check(Slots(program).form, file(program.name))
        }
    }

    @Test
    fun `what is no program is refused with its first bytes`() {
        assertRefused(
            "it begins with 504b030414000000; no ExecuTorch program does",
            "PK\u0003\u0004\u0014".toByteArray() + ByteArray(40),
        )
        assertRefused("it begins with nothing; no ExecuTorch program does", ByteArray(0))
    }

    @Test
    fun `a program that is cut anywhere is refused`() {
        for (length in 0 until raw.size step 97) {
            val error = assertThrows(EngineException::class.java) { check(raw.copyOf(length)) }
            assertEquals(EngineException.Reason.BUNDLE_UNUSABLE, error.reason)
        }
        assertRefused("it is truncated: its segments end at", raw.copyOf(raw.size - 1))
    }

    @Test
    fun `lengths that contradict each other are refused`() {
        assertRefused("it has no header that tells its length", changed { putInt(12, 7) })
        assertRefused("it is truncated: its program has 18446744073709551615 bytes", changed { putLong(16, -1) })
        assertRefused("its root table stands at 4", changed { putInt(0, 4) })
        assertRefused("its segments begin at 64, inside the program's", changed { putLong(24, 64) })
        assertRefused("it is truncated: its segments end at", changed { putLong(32, Long.MAX_VALUE) })
    }

    @Test
    fun `another number of inputs than the manifest says is refused`() {
        val fewer = ProgramForm(form.name, form.inputs.dropLast(1), form.outputs)
        val count = form.inputs.size
        assertRefused("program 'predict' has $count inputs, its manifest says ${count - 1}", raw, fewer)
    }

    @Test
    fun `another shape or type than the manifest says is refused`() {
        val wider = TensorSpec("SLOT_KIND_LOGITS", Dtype.DTYPE_FLOAT32, listOf(4, 5))
        assertRefused(
            "program 'predict': outputs hold float32[4, 3] where its manifest says float32[4, 5] (SLOT_KIND_LOGITS)",
            raw,
            ProgramForm(form.name, form.inputs, listOf(wider)),
        )
        val integers = form.inputs[0].copy(dtype = Dtype.DTYPE_INT64)
        assertRefused(
            "program 'predict': inputs hold float32[3] where its manifest says int64[3] (classifier.bias)",
            raw,
            ProgramForm(form.name, listOf(integers) + form.inputs.drop(1), form.outputs),
        )
    }

    @Test
    fun `of bytes that are changed anywhere in its tables nothing worse comes than a refusal`() {
        val tables = ByteBuffer.wrap(raw).order(ByteOrder.LITTLE_ENDIAN).getLong(16).toInt()
        val random = Random(1)
        val refused =
            (0 until 400).count {
                val damaged = raw.clone()
                repeat(4) { damaged[random.nextInt(tables)] = random.nextInt(256).toByte() }
                orNamedError { check(damaged) } == null
            }
        assertTrue("$refused", refused > 0)
    }

    private fun changed(change: ByteBuffer.() -> Unit): ByteArray =
        raw.clone().also { ByteBuffer.wrap(it).order(ByteOrder.LITTLE_ENDIAN).change() }

    private fun assertRefused(
        text: String,
        content: ByteArray,
        expected: ProgramForm = form,
    ) {
        val error = assertThrows(EngineException::class.java) { check(content, expected) }
        assertEquals(EngineException.Reason.BUNDLE_UNUSABLE, error.reason)
        assertTrue(error.message, text in error.message.orEmpty())
    }

    private fun check(
        content: ByteArray,
        expected: ProgramForm = form,
    ) {
        val file = folder.root.resolve("program.pte")
        file.writeBytes(content)
        PteFile.check(expected, file)
    }
}
