package org.fedlens.sdk

import com.google.gson.JsonObject
import com.google.protobuf.ByteString
import org.fedlens.proto.v1.Assignment
import org.fedlens.proto.v1.Dtype
import org.fedlens.proto.v1.ExchangeableTensor
import org.fedlens.proto.v1.HyperParameter
import org.fedlens.proto.v1.Manifest
import org.fedlens.proto.v1.Part
import org.fedlens.proto.v1.Preprocessing
import org.fedlens.proto.v1.Program
import org.fedlens.proto.v1.ProgramFile
import org.fedlens.proto.v1.ProgramFormat
import org.fedlens.proto.v1.Slot
import org.fedlens.proto.v1.SlotKind
import org.fedlens.proto.v1.TensorRole
import org.fedlens.proto.v1.TensorSelector
import org.fedlens.sdk.ManifestException.Reason
import org.fedlens.sdk.blob.TensorSpec
import org.junit.Assert.assertArrayEquals
import org.junit.Assert.assertEquals
import org.junit.Assert.assertThrows
import org.junit.Rule
import org.junit.Test
import org.junit.rules.TemporaryFolder
import java.io.File
import kotlin.random.Random

class BundleTest {
    @get:Rule
    val folder = TemporaryFolder()

    private val manifest = Bundle.open(Vectors.file("bundle")).manifest
    private val raw = Vectors.bytes("bundle/manifest.pb")

    @Test
    fun `the bundle of the vectors is whole, and its id is the one that assignments name`() {
        val bundle = Bundle.open(Vectors.file("bundle"))
        val listed = checkNotNull(Vectors.file("bundle/parts").list()).toSet()
        assertEquals(listed, bundle.manifest.partsList.map { it.sha256.toByteArray().toHex() }.toSet())
        val assignment = Assignment.parseFrom(Vectors.bytes("plan/assignment.bin"))
        assertArrayEquals(assignment.bundle.toByteArray(), bundle.id)
        val wanted = TensorSpec.ofTensors(bundle.manifest.tensorsList)
        assertEquals(wanted, bundle.initial().layout.specs)
        val initial = Manifests.initialSet(bundle.manifest)
        assertEquals(bundle.initial().size, initial.size)
    }

    @Test
    fun `programs of the vectors have the files and slots that the manifest says`() {
        val programs = Vectors.json("programs.json").objects("programs")
        assertEquals(manifest.programsList.map { it.name }.toSet(), programs.map { it.string("name") }.toSet())
        for (vector in programs) {
            val program = Manifests.program(manifest, vector.string("name"))
            assertEquals(slots(vector.objects("inputs")), program.inputsList)
            assertEquals(slots(vector.objects("outputs")), program.outputsList)
            assertEquals(vector.string("makes"), program.makes)
            assertEquals(vector.list("optional").map { it.asString }, program.optionalList)
            for ((suffix, path) in vector.getAsJsonObject("files").entrySet()) {
                val format = ProgramFormat.valueOf("PROGRAM_FORMAT_" + suffix.uppercase())
                val part = Manifests.programPart(manifest, program.name, format)
                assertEquals(path.asString, "bundle/parts/" + part.toHex())
            }
        }
    }

    @Test
    fun `a client of phones needs the parts of its format, and no frozen ones`() {
        val parts = Manifests.parts(manifest, setOf(ProgramFormat.PROGRAM_FORMAT_PTE)).map { it.toHex() }
        assertEquals(manifest.programsCount + 2, parts.size) // every program, initial weights, public photos
        copyBundle(parts)
        Bundle.open(folder.root, setOf(ProgramFormat.PROGRAM_FORMAT_PTE))
        assertReason(Reason.PART_MISSING) { Bundle.open(folder.root) }
    }

    @Test
    fun `a part with a flipped bit is refused`() {
        copyBundle(manifest.partsList.map { it.sha256.toByteArray().toHex() })
        val part = File(folder.root, "parts").listFiles()!!.first()
        part.setWritable(true)
        part.writeBytes(part.readBytes().also { it[it.size / 2] = (it[it.size / 2].toInt() xor 1).toByte() })
        assertReason(Reason.PART_DAMAGED) { Bundle.open(folder.root) }
    }

    @Test
    fun `a folder without a manifest, or with a huge one, is no bundle`() {
        assertReason(Reason.MISSING) { Bundle.open(folder.root) }
        folder.newFile("manifest.pb").writeBytes(ByteArray(Manifests.MAX_BYTES + 1))
        assertReason(Reason.TOO_LARGE) { Bundle.open(folder.root) }
    }

    @Test
    fun `a program or format that is not there is refused by name`() {
        assertReason(Reason.NO_SUCH_PROGRAM) { Manifests.program(manifest, "collect") }
        assertReason(Reason.NO_SUCH_PROGRAM) {
            Manifests.programPart(manifest, "step", ProgramFormat.PROGRAM_FORMAT_ONNX)
        }
    }

    @Test
    fun `a selector takes the tensors that match every list that is set`() {
        val names = { selector: TensorSelector.Builder ->
            Manifests.select(manifest.tensorsList, selector.build()).map { it.name }
        }
        val classifier = TensorSelector.newBuilder().addRoles(TensorRole.TENSOR_ROLE_CLASSIFIER)
        assertEquals(listOf("classifier.bias", "classifier.weight"), names(classifier))
        classifier.addNames("classifier.bias").addNames("extractor.bias")
        assertEquals(listOf("classifier.bias"), names(classifier))
        assertEquals(manifest.tensorsList.map { it.name }, names(TensorSelector.newBuilder()))
    }

    @Test
    fun `a manifest in which anything is wrong is refused`() {
        val wrong =
            mapOf<String, Manifest.Builder.() -> Unit>(
                "format" to { format = 2 },
                "bundle class" to { clearBundleClass() },
                "preprocessing" to { rule { clearVersion() } },
                "side of zero" to { rule { clearWidth() } },
                "side above 31 bits" to { rule { height = -1 } },
                "classes" to { clearClassNames().addClassNames("cat") },
                "a class twice" to { addClassNames("cat") },
                "batch" to { batch = 65_537 },
                "last batch" to { clearLastBatch() },
                "no tensors" to { clearTensors() },
                "tensors not sorted" to { addTensors(0, getTensors(1)) },
                "tensor type" to { tensor { dtypeValue = 2 } },
                "tensor kind" to { tensor { clearKind() } },
                "tensor role" to { tensor { clearRole() } },
                "empty dimension" to { tensor { addShape(0) } },
                "too many elements" to { tensor { addShape(1L shl 40) } },
                "elements above 63 bits" to { tensor { addShape(-1) } },
                "a part twice" to { addParts(getParts(0)) },
                "digest of a part" to { addParts(part(31)) },
                "size of a part" to { setParts(0, getParts(0).toBuilder().clearSize()) },
                "initial" to { clearInitial() },
                "frozen" to { frozen = ByteString.copyFrom(ByteArray(32)) },
                "hyper-parameter twice" to { addHyperParameters(getHyperParameters(0)) },
                "hyper-parameter out of range" to { hyper { defaultValue = -1.0 } },
                "hyper-parameter without an end" to { hyper { maximum = Double.POSITIVE_INFINITY } },
                "hyper-parameter not a number" to { hyper { defaultValue = Double.NaN } },
                "program twice" to { addPrograms(getPrograms(0)) },
                "no step" to { removePrograms(programsList.indexOfFirst { it.name == "step" }) },
                "no embed" to { removePrograms(programsList.indexOfFirst { it.name == "embed" }) },
                "program without files" to { program { clearFiles() } },
                "program without inputs" to { program { clearInputs() } },
                "file that is no part" to { file { sha256 = ByteString.copyFrom(ByteArray(32)) } },
                "file without a format" to { file { clearFormat() } },
                "slot without a kind" to { input { clearKind() } },
                "slot type" to { input { clearDtype() } },
                "slot like no weight" to { input { kind = SlotKind.SLOT_KIND_WEIGHT } },
                "slot of another type than its weight" to { weight { dtype = Dtype.DTYPE_INT64 } },
                "slot of another shape than its weight" to { weight { addShape(1) } },
                "slot of no hyper-parameter" to { input { kind = SlotKind.SLOT_KIND_HYPER } },
                "slot of an extractor" to { input { kind = SlotKind.SLOT_KIND_EXTRACTOR } },
                "concatenated without extract" to { concatenated = 2 },
                "stored views without views" to { storedViews = 1 },
                "views without view" to { views = 2 },
                "views above 31 bits" to { views = -1 },
            )
        for ((name, change) in wrong) {
            val changed = manifest.toBuilder().apply(change).build()
            assertReason(Reason.INVALID, name) { Manifests.parse(changed.toByteArray()) }
        }
    }

    @Test
    fun `a manifest that is cut or has flipped bits ends in a named error or in a checked manifest`() {
        val random = Random(20_240_606)
        // Cut between two of the last fields, it is whole but for what nobody needs.
        for (length in raw.indices) orNamedError { Manifests.parse(raw.copyOf(length)) }
        repeat(5_000) {
            val damaged = raw.copyOf()
            repeat(1 + random.nextInt(3)) {
                val at = random.nextInt(damaged.size)
                damaged[at] = (damaged[at].toInt() xor (1 shl random.nextInt(8))).toByte()
            }
            orNamedError { Manifests.parse(damaged) }
        }
    }

    private fun Manifest.Builder.rule(change: Preprocessing.Builder.() -> Unit) {
        preprocessing = preprocessing.toBuilder().apply(change).build()
    }

    private fun Manifest.Builder.tensor(change: ExchangeableTensor.Builder.() -> Unit) {
        setTensors(0, getTensors(0).toBuilder().apply(change))
    }

    private fun Manifest.Builder.hyper(change: HyperParameter.Builder.() -> Unit) {
        setHyperParameters(0, getHyperParameters(0).toBuilder().apply(change))
    }

    private fun Manifest.Builder.program(change: Program.Builder.() -> Unit) {
        setPrograms(0, getPrograms(0).toBuilder().apply(change))
    }

    private fun Manifest.Builder.file(change: ProgramFile.Builder.() -> Unit) =
        program { setFiles(0, getFiles(0).toBuilder().apply(change)) }

    private fun Manifest.Builder.input(change: Slot.Builder.() -> Unit) =
        program { setInputs(0, getInputs(0).toBuilder().apply(change)) }

    private fun Manifest.Builder.weight(change: Slot.Builder.() -> Unit) {
        val (program, slot) =
            programsList.indices
                .flatMap { program -> getPrograms(program).inputsList.indices.map { program to it } }
                .first { (program, slot) -> getPrograms(program).getInputs(slot).kind == SlotKind.SLOT_KIND_WEIGHT }
        val changed = getPrograms(program).toBuilder()
        setPrograms(program, changed.setInputs(slot, changed.getInputs(slot).toBuilder().apply(change)))
    }

    private fun part(bytes: Int) = Part.newBuilder().setSha256(ByteString.copyFrom(ByteArray(bytes))).setSize(1)

    private fun slots(vectors: List<JsonObject>) = vectors.map { JsonMessages.of<Slot>(it) }

    private fun copyBundle(parts: List<String>) {
        File(folder.root, "manifest.pb").writeBytes(raw)
        for (part in parts) Vectors.file("bundle/parts/$part").copyTo(File(folder.root, "parts/$part"))
    }

    private fun assertReason(
        reason: Reason,
        name: String = reason.name,
        read: () -> Any,
    ) = assertEquals(name, reason, assertThrows(name, ManifestException::class.java) { read() }.reason)
}
