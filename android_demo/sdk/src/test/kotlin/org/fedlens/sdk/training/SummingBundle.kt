package org.fedlens.sdk.training

import com.google.protobuf.ByteString
import org.fedlens.proto.v1.BundleClass
import org.fedlens.proto.v1.Dtype
import org.fedlens.proto.v1.ExchangeableTensor
import org.fedlens.proto.v1.HyperParameter
import org.fedlens.proto.v1.LastBatch
import org.fedlens.proto.v1.Manifest
import org.fedlens.proto.v1.Part
import org.fedlens.proto.v1.Preprocessing
import org.fedlens.proto.v1.Program
import org.fedlens.proto.v1.ProgramFile
import org.fedlens.proto.v1.ProgramFormat
import org.fedlens.proto.v1.Slot
import org.fedlens.proto.v1.SlotKind
import org.fedlens.proto.v1.TensorKind
import org.fedlens.proto.v1.TensorRole
import org.fedlens.sdk.Bundle
import org.fedlens.sdk.blob.BlobWriter
import org.fedlens.sdk.blob.FloatTensor
import org.fedlens.sdk.sha256
import org.fedlens.sdk.toHex
import java.io.File

/** A bundle whose programs are done by [SummingEngine]: `fc.bias` [2] and `fc.weight` [2, features], all zeros. */
internal class SummingBundle(
    val features: Int = 3,
    val batch: Int = 4,
    val lastBatch: LastBatch = LastBatch.LAST_BATCH_MASKED,
    val withReference: Boolean = false,
    val concatenated: Int = 0,
    val views: Int = 0,
    val storedViews: Int = 0,
    val programFormats: List<ProgramFormat> = listOf(ProgramFormat.PROGRAM_FORMAT_PTE),
    val bundleClass: BundleClass = BundleClass.BUNDLE_CLASS_FROZEN_BACKBONE,
    val classNames: List<String> = listOf("cat", "dog"),
) {
    /** Everything that a server has of it, by digest. */
    val parts = LinkedHashMap<ByteString, ByteArray>()
    val manifest: Manifest
    val raw: ByteArray
    val id: ByteArray get() = sha256(raw)

    init {
        val width = if (concatenated > 0) concatenated * EXTRACTED else features
        val shapes = mapOf("fc.bias" to listOf(2L), "fc.weight" to listOf(2L, width.toLong()))
        val zeros =
            shapes.mapValues { (_, shape) ->
                FloatTensor.of(shape, FloatArray(shape.reduce(Long::times).toInt()))
            }
        val builder =
            Manifest
                .newBuilder()
                .setFormat(1)
                .setBundleClass(bundleClass)
                .setPreprocessing(Preprocessing.newBuilder().setVersion(1).setHeight(SIDE).setWidth(SIDE))
                .addAllClassNames(classNames)
                .setBatch(batch)
                .setLastBatch(lastBatch)
                .setConcatenated(concatenated)
                .setViews(views)
                .setStoredViews(storedViews)
                .setInitial(part(BlobWriter.encode(zeros)))
                .setFrozen(part(BlobWriter.encode(mapOf("scale" to FloatTensor.of(listOf(1), floatArrayOf(1f))))))
        for ((name, shape) in shapes) {
            builder.addTensors(
                ExchangeableTensor
                    .newBuilder()
                    .setName(name)
                    .setDtype(Dtype.DTYPE_FLOAT32)
                    .addAllShape(shape)
                    .setKind(TensorKind.TENSOR_KIND_LINEAR)
                    .setRole(TensorRole.TENSOR_ROLE_CLASSIFIER),
            )
        }
        builder.addHyperParameters(hyper("lr", 1.0, 0.0, 1e38))
        builder.addHyperParameters(hyper("mu", 0.0, 0.0, 10.0))
        programs(shapes, width.toLong()).forEach { (name, slots) -> builder.addPrograms(program(name, slots)) }
        for ((digest, content) in parts) {
            builder.addParts(Part.newBuilder().setSha256(digest).setSize(content.size.toLong()))
        }
        manifest = builder.build()
        raw = manifest.toByteArray()
    }

    /** The bundle as a folder. */
    fun write(folder: File): Bundle {
        folder.mkdirs()
        File(folder, "manifest.pb").writeBytes(raw)
        File(folder, "parts").mkdirs()
        for ((digest, content) in parts) File(folder, "parts/${digest.toByteArray().toHex()}").writeBytes(content)
        return Bundle.open(folder)
    }

    private fun programs(
        shapes: Map<String, List<Long>>,
        width: Long,
    ): Map<String, Pair<List<Slot>, List<Slot>>> {
        val weights = shapes.map { (name, shape) -> slot(SlotKind.SLOT_KIND_WEIGHT, name, shape) }
        val rows = batch.toLong()
        val row = slot(SlotKind.SLOT_KIND_INPUT, "", listOf(rows, width))
        val seen = if (views == 0) row else slot(SlotKind.SLOT_KIND_INPUT, "", listOf(rows, views.toLong(), width))
        val label = slot(SlotKind.SLOT_KIND_LABEL, "", listOf(rows), Dtype.DTYPE_INT64)
        val hyper = listOf("lr", "mu").map { slot(SlotKind.SLOT_KIND_HYPER, it, emptyList()) }
        val references = shapes.map { (name, shape) -> slot(SlotKind.SLOT_KIND_REFERENCE, "global/$name", shape) }
        val taken = weights + seen + label + hyper + references.filter { withReference }
        val logits = slot(SlotKind.SLOT_KIND_LOGITS, "", listOf(rows, 2))
        val loss = slot(SlotKind.SLOT_KIND_LOSS, "", emptyList())
        val photo = listOf(1L, 3L, SIDE.toLong(), SIDE.toLong())
        val input = slot(SlotKind.SLOT_KIND_INPUT, "", photo)
        val found = LinkedHashMap<String, Pair<List<Slot>, List<Slot>>>()
        found["step"] = taken to weights + loss + logits
        found["predict"] = weights + row to listOf(logits)
        found["another-step"] = found.getValue("step")
        found["embed"] = listOf(input) to listOf(slot(SlotKind.SLOT_KIND_FEATURES, "", listOf(1, features.toLong())))
        if (views > 0) {
            val uniforms = slot(SlotKind.SLOT_KIND_UNIFORM, "", listOf(1, UNIFORMS.toLong()))
            found["view"] = listOf(input, uniforms) to listOf(slot(SlotKind.SLOT_KIND_PHOTO, "", photo))
        }
        if (concatenated > 0) {
            val wide = features.toLong()
            val extractor = slot(SlotKind.SLOT_KIND_EXTRACTOR, "base.weight", listOf(EXTRACTED.toLong(), wide))
            val outputs = slot(SlotKind.SLOT_KIND_FEATURES, "", listOf(rows, EXTRACTED.toLong()))
            val inputs = listOf(extractor, slot(SlotKind.SLOT_KIND_INPUT, "", listOf(rows, wide)))
            found["extract"] = inputs to listOf(outputs)
        }
        return found
    }

    private fun program(
        name: String,
        slots: Pair<List<Slot>, List<Slot>>,
    ): Program {
        val program = Program.newBuilder().setName(name).addAllInputs(slots.first).addAllOutputs(slots.second)
        if (name.endsWith("step")) program.setObjective("sums").setOptimiser("sgd")
        for (format in programFormats) {
            val file = part("$name as $format of $features features".toByteArray())
            program.addFiles(ProgramFile.newBuilder().setFormat(format).setSha256(file))
        }
        return program.build()
    }

    private fun part(content: ByteArray): ByteString = ByteString.copyFrom(sha256(content)).also { parts[it] = content }

    private fun hyper(
        name: String,
        default: Double,
        minimum: Double,
        maximum: Double,
    ) = HyperParameter
        .newBuilder()
        .setName(name)
        .setDefaultValue(default)
        .setMinimum(minimum)
        .setMaximum(maximum)

    private fun slot(
        kind: SlotKind,
        name: String,
        shape: List<Long>,
        dtype: Dtype = Dtype.DTYPE_FLOAT32,
    ): Slot =
        Slot
            .newBuilder()
            .setKind(kind)
            .setName(name)
            .setDtype(dtype)
            .addAllShape(shape)
            .build()

    companion object {
        const val SIDE = 4
        const val EXTRACTED = 2
        const val UNIFORMS = 11
    }
}
