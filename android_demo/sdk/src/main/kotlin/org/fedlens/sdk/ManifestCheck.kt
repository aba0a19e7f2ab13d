package org.fedlens.sdk

import com.google.protobuf.ByteString
import org.fedlens.proto.v1.BundleClass
import org.fedlens.proto.v1.Dtype
import org.fedlens.proto.v1.ExchangeableTensor
import org.fedlens.proto.v1.LastBatch
import org.fedlens.proto.v1.Manifest
import org.fedlens.proto.v1.Program
import org.fedlens.proto.v1.ProgramFormat
import org.fedlens.proto.v1.Slot
import org.fedlens.proto.v1.SlotKind
import org.fedlens.proto.v1.TensorKind
import org.fedlens.proto.v1.TensorRole
import org.fedlens.sdk.ManifestException.Reason
import org.fedlens.sdk.blob.Layout
import org.fedlens.sdk.blob.TensorSpec
import org.fedlens.sdk.plan.ProgramCheck

/** The check that no field of a manifest is missing, out of range, or in conflict with another. */
internal class ManifestCheck(
    private val manifest: Manifest,
) {
    private val parts = manifest.partsList.mapTo(HashSet()) { it.sha256 }
    private val programs = manifest.programsList.associateBy { it.name }
    private val isFrozenBackbone = manifest.bundleClass == BundleClass.BUNDLE_CLASS_FROZEN_BACKBONE

    fun run() {
        with(manifest) {
            need(format == FORMAT) { "manifest format ${unsigned(format)}; this version reads $FORMAT" }
            need(bundleClassValue != 0) { "bundle_class is unset" }
            need(preprocessing.version != 0) { "preprocessing.version is unset" }
            for (side in listOf(preprocessing.height, preprocessing.width)) {
                need(side in 1..MAX_SIDE) { "photo side of ${unsigned(side)} pixels; allowed are 1 to $MAX_SIDE" }
            }
            val classes = classNamesList
            need(classes.size >= 2 && isEachOnce(classes)) { "class names must be two or more, each once: $classes" }
            checkDisplayNames(classes.size)
            need(batch in 1..MAX_BATCH) { "batch ${unsigned(batch)}; allowed are 1 to $MAX_BATCH" }
            need(lastBatchValue != LastBatch.LAST_BATCH_UNSPECIFIED_VALUE) { "last_batch is unset" }
        }
        checkTensors()
        checkParts()
        checkHyperParameters()
        checkPrograms()
        ProgramCheck(manifest).run()
        checkPublic()
    }

    private fun checkDisplayNames(classes: Int) {
        val languages = manifest.displayNamesList.map { it.language }
        need(languages.size <= MAX_LANGUAGES) {
            "display names in ${languages.size} languages; allowed are $MAX_LANGUAGES"
        }
        need(languages == languages.toSortedSet().toList()) {
            "display names must be sorted by language, each once: $languages"
        }
        for (shown in manifest.displayNamesList) {
            val where = "display names in '${shown.language}'"
            need(LANGUAGE.matches(shown.language)) { "$where: not a language tag such as 'de' or 'pt-BR'" }
            need(shown.namesCount == classes) { "$where: ${shown.namesCount} names of $classes classes" }
            need(isEachOnce(shown.namesList)) { "$where: two classes have the same name: ${shown.namesList}" }
            for (name in shown.namesList) {
                val size = name.toByteArray().size
                need(size in 1..MAX_DISPLAY_NAME_BYTES) {
                    "$where: a name of $size bytes; allowed are 1 to $MAX_DISPLAY_NAME_BYTES"
                }
                need(Layout.isPrintable(name)) { "$where: a name has a control character or one that turns text" }
            }
        }
    }

    private fun checkTensors() {
        val names = manifest.tensorsList.map { it.name.toByteArray() }
        val isAscending = names.zipWithNext { left, right -> KeyedHash.compareUnsigned(left, right) < 0 }.all { it }
        need(names.isNotEmpty() && isAscending) {
            "there must be exchangeable tensors, sorted by name, each once"
        }
        for (tensor in manifest.tensorsList) {
            val what = "tensor '${tensor.name}'"
            need(isNumber(tensor.dtype)) { "$what is neither float32 nor int64" }
            need(tensor.kindValue != TensorKind.TENSOR_KIND_UNSPECIFIED_VALUE) { "$what has no kind" }
            need(tensor.roleValue != TensorRole.TENSOR_ROLE_UNSPECIFIED_VALUE) { "$what has no role" }
            need(hasElements(tensor.shapeList)) { "$what has shape ${tensor.shapeList}" }
        }
        try {
            Layout.of(TensorSpec.ofTensors(manifest.tensorsList))
        } catch (error: BlobException) {
            val message = "no blob can hold the exchangeable tensors: ${error.message}"
            throw ManifestException(Reason.INVALID, message, error)
        }
    }

    private fun checkParts() {
        need(parts.size == manifest.partsCount) { "a part occurs twice" }
        val areDigests = parts.all { it.size() == KeyedHash.DIGEST_BYTES }
        need(areDigests) { "a part's digest does not have ${KeyedHash.DIGEST_BYTES} bytes" }
        need(manifest.partsList.all { it.size != 0L }) { "a part has no size" }
        needPart(manifest.initial) { "initial is not among the parts" }
        need(manifest.frozen.isEmpty || manifest.frozen in parts) { "frozen is not among the parts" }
    }

    private fun checkHyperParameters() {
        val names = manifest.hyperParametersList.map { it.name }
        need("" !in names && isEachOnce(names)) { "hyper-parameters need a name, each once: $names" }
        for (hyper in manifest.hyperParametersList) {
            val (low, high) = hyper.minimum to hyper.maximum
            need(low.isFinite() && high.isFinite() && hyper.defaultValue in low..high) {
                "hyper-parameter '${hyper.name}': default ${hyper.defaultValue} is not within $low to $high"
            }
        }
    }

    private fun checkPrograms() {
        need(programs.size == manifest.programsCount) { "a program occurs twice" }
        val needed = setOf("step", "predict") + if (isFrozenBackbone) setOf("embed") else emptySet()
        need(programs.keys.containsAll(needed)) { "programs $needed are needed, found ${programs.keys}" }
        checkConcatenated()
        checkViews()
        val weights = manifest.tensorsList.associateBy { it.name }
        val hypers = manifest.hyperParametersList.mapTo(HashSet()) { it.name }
        for (program in manifest.programsList) {
            checkFiles(program)
            for (slot in program.inputsList + program.outputsList) {
                val where = "program '${program.name}', slot '${slot.name}'"
                need(isNumber(slot.dtype)) { "$where: its type is neither float32 nor int64" }
                when (slot.kind) {
                    SlotKind.SLOT_KIND_UNSPECIFIED -> need(false) { "$where: no kind" }
                    SlotKind.SLOT_KIND_WEIGHT ->
                        need(weights[slot.name].isLike(slot)) { "$where: no tensor like it" }
                    SlotKind.SLOT_KIND_EXTRACTOR ->
                        need(program.name == "extract" && slot.name.isNotEmpty()) {
                            "$where: extractors belong to 'extract', by name"
                        }
                    SlotKind.SLOT_KIND_FROZEN ->
                        need(!manifest.frozen.isEmpty) { "$where: the bundle has no frozen tensors" }
                    SlotKind.SLOT_KIND_HYPER ->
                        need(slot.name in hypers) { "$where: no hyper-parameter of that name" }
                    else -> Unit
                }
            }
        }
    }

    private fun checkFiles(program: Program) {
        val what = "program '${program.name}'"
        need(program.filesCount > 0) { "$what has no file" }
        need(program.inputsCount > 0 && program.outputsCount > 0) { "$what has no inputs or no outputs" }
        for (file in program.filesList) {
            needPart(file.sha256) { "a file of $what is not among the parts" }
            need(file.formatValue != ProgramFormat.PROGRAM_FORMAT_UNSPECIFIED_VALUE) { "a file of $what has no format" }
        }
    }

    private fun checkPublic() {
        if (!manifest.hasPublic()) return
        needPart(manifest.public.sha256) { "public is not among the parts" }
        need(manifest.public.rows > 0) { "public has ${unsigned(manifest.public.rows)} rows" }
        need(manifest.concatenated == 0) { "a bundle that concatenates extractors cannot have public rows" }
    }

    /** Check that `step` and `predict` take the concatenated outputs of the extractors. */
    private fun checkConcatenated() {
        val count = manifest.concatenated
        if (count == 0) return
        need(count in 1..MAX_CONCATENATED) {
            "${unsigned(count)} concatenated extractors; allowed are 1 to $MAX_CONCATENATED"
        }
        val extract = programs["extract"]
        need(extract != null) { "a bundle that concatenates extractors needs program 'extract'" }
        need(extract.inputsList.any { it.kind == SlotKind.SLOT_KIND_EXTRACTOR }) { "'extract' takes no extractor" }
        val shapes = extract.outputsList.shapes(SlotKind.SLOT_KIND_FEATURES)
        val batch = manifest.batch.toLong()
        need(extract.outputsCount == 1 && shapes.size == 1 && shapes[0].size == 2 && shapes[0][0] == batch) {
            "'extract' must give features [$batch, d], found $shapes"
        }
        val width = shapes[0][1]
        need(width in 0..Long.MAX_VALUE / count) { "'extract' gives features of ${unsigned(width)} numbers" }
        val wanted = listOf(listOf(batch, count * width))
        for (name in listOf("step", "predict")) {
            val inputs = programs.getValue(name).inputsList.shapes(SlotKind.SLOT_KIND_INPUT)
            need(inputs == wanted) { "program '$name' takes $inputs, $count extractors side by side give $wanted" }
        }
    }

    /** Check that `view` and `step` agree with the number of views. */
    private fun checkViews() {
        val views = manifest.views
        val stored = manifest.storedViews
        if (views == 0) {
            need(stored == 0) { "${unsigned(stored)} stored views of a bundle without views" }
            return
        }
        need(views in 1..MAX_VIEWS) { "${unsigned(views)} views of a photo; allowed are 1 to $MAX_VIEWS" }
        val view = programs["view"]
        need(view != null) { "a bundle with views needs program 'view'" }
        if (isFrozenBackbone) {
            need(stored in views..MAX_STORED_VIEWS) {
                "${unsigned(stored)} stored views; allowed are $views, what a step takes, to $MAX_STORED_VIEWS"
            }
        } else {
            need(stored == 0) { "${unsigned(stored)} stored views of a bundle that trains all layers" }
        }
        checkViewProgram(view)
        val batch = manifest.batch.toLong()
        val given = programs.getValue("predict").inputsList.shapes(SlotKind.SLOT_KIND_INPUT).firstOrNull().orEmpty()
        val taken = programs.getValue("step").inputsList.shapes(SlotKind.SLOT_KIND_INPUT)
        need(taken == listOf(listOf(batch, views.toLong()) + given.drop(1))) {
            "'step' takes $taken; $views views of what 'predict' takes, $given, are something else"
        }
    }

    private fun checkViewProgram(view: Program) {
        val slots = view.inputsList + view.outputsList
        val kinds = listOf(SlotKind.SLOT_KIND_INPUT, SlotKind.SLOT_KIND_UNIFORM, SlotKind.SLOT_KIND_PHOTO)
        need(slots.map { it.kind } == kinds) { "'view' must make a photo of a photo and uniform random numbers" }
        val rule = manifest.preprocessing
        val rows = if (isFrozenBackbone) 1L else manifest.batch.toLong()
        val photos = listOf(rows, 3L, rule.height.toLong(), rule.width.toLong())
        for (slot in listOf(slots[0], slots[2])) {
            need(slot.shapeList == photos) { "'view' has photos ${slot.shapeList}, the bundle $photos" }
        }
        val uniforms = slots[1].shapeList
        need(uniforms.size == 2 && uniforms[0] == rows && uniforms[1] != 0L) { "'view' takes uniforms $uniforms" }
    }

    private inline fun needPart(
        digest: ByteString,
        message: () -> String,
    ) = need(digest in parts, message)

    private companion object {
        const val FORMAT = 1
        const val MAX_SIDE = 4096
        const val MAX_BATCH = 65536
        const val MAX_VIEWS = 16
        const val MAX_STORED_VIEWS = 64
        const val MAX_CONCATENATED = 64
        const val MAX_LANGUAGES = 64
        const val MAX_DISPLAY_NAME_BYTES = 200

        // RFC 5646, section 2.1: language, script, region; in the letter case that its section 2.1.1 recommends.
        val LANGUAGE = Regex("[a-z]{2,3}(-[A-Z][a-z]{3})?(-([A-Z]{2}|[0-9]{3}))?")
        const val MAX_ELEMENTS = 1L shl 40

        fun isNumber(dtype: Dtype) = dtype == Dtype.DTYPE_FLOAT32 || dtype == Dtype.DTYPE_INT64

        fun ExchangeableTensor?.isLike(slot: Slot) =
            this != null && dtypeValue == slot.dtypeValue && shapeList == slot.shapeList

        fun isEachOnce(names: List<String>) = names.toSet().size == names.size

        /** True if a tensor of this shape has at least one element and fewer than 2^40. */
        fun hasElements(shape: List<Long>): Boolean {
            var count = 1L
            for (dimension in shape) {
                if (dimension <= 0 || dimension > MAX_ELEMENTS / count) return false
                count *= dimension
            }
            return count < MAX_ELEMENTS
        }

        fun List<Slot>.shapes(kind: SlotKind): List<List<Long>> = filter { it.kind == kind }.map { it.shapeList }

        // Integers are unsigned in the schema, but signed on the JVM.
        fun unsigned(value: Int): String = Integer.toUnsignedString(value)

        fun unsigned(value: Long): String = java.lang.Long.toUnsignedString(value)
    }
}

@OptIn(kotlin.contracts.ExperimentalContracts::class)
private inline fun need(
    condition: Boolean,
    message: () -> String,
) {
    kotlin.contracts.contract { returns() implies condition }
    if (!condition) throw ManifestException(Reason.INVALID, message())
}
