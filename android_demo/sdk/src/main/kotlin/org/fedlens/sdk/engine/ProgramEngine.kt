package org.fedlens.sdk.engine

import org.fedlens.proto.v1.BundleClass
import org.fedlens.proto.v1.Dtype
import org.fedlens.proto.v1.LastBatch
import org.fedlens.proto.v1.Manifest
import org.fedlens.proto.v1.ProgramFormat
import org.fedlens.proto.v1.SlotKind
import org.fedlens.sdk.Bundle
import org.fedlens.sdk.EngineException
import org.fedlens.sdk.EngineException.Reason
import org.fedlens.sdk.ManifestException
import org.fedlens.sdk.Manifests
import org.fedlens.sdk.blob.FloatTensor
import org.fedlens.sdk.blob.LongTensor
import org.fedlens.sdk.blob.Tensor
import org.fedlens.sdk.newSha256
import org.fedlens.sdk.plan.spec
import org.fedlens.sdk.plan.takesViews
import org.fedlens.sdk.sha256
import org.fedlens.sdk.toHex
import java.io.File
import java.io.IOException
import java.nio.FloatBuffer

/**
 * An engine for the `.pte` programs of a bundle with a frozen backbone, which the programs contain.
 *
 * In a runtime of this process, the first run of a program on a device is a trial, marked on the disk, so that a death in
 * it is counted. A hostile program that passes its trial can still harm this process: run only bundles of publishers
 * whom you trust.
 *
 * @param bundle The bundle; each program is loaded on first use.
 * @param runtime The runtime for the programs.
 * @param trials The folder for the marks of trials, used by this process only; created if necessary.
 * @param crashes Counts the processes that the bundle has ended, and says when it may run.
 * @throws EngineException With reason `BUNDLE_UNUSABLE`: the bundle trains all layers, or has no programs for phones.
 */
public class ProgramEngine(
    override val bundle: Bundle,
    private val runtime: ProgramRuntime,
    trials: File,
    private val crashes: CrashLog,
) : Engine {
    private val manifest = bundle.manifest
    private val trials = Trials(trials) { crashes.note(bundle.id) }
    private val programs = HashMap<String, SlottedProgram>()
    private var isClosed = false

    init {
        unfitForPhones(manifest)?.let { unusable(it) }
    }

    override fun embed(photo: FloatArray): FloatArray {
        val program = program("embed")
        val at = program.inputIndex(SlotKind.SLOT_KIND_INPUT)
        checkCount("the photo", photo.size, 1, program.inputs[at])
        val features = program.outputIndex(SlotKind.SLOT_KIND_FEATURES)
        if (program.inputs.size != 1) unusable("program 'embed' takes more than a photo")
        program.floatArgument(at).put(photo)
        program.run()
        return program.floatResult(features).toArray().also {
            if (!it.areFinite()) nonFinite("the features of a photo hold a NaN or an infinity")
        }
    }

    override fun view(
        photos: FloatArray,
        uniforms: FloatArray,
    ): FloatArray {
        if (manifest.views == 0) badInput("the bundle has no views of photos")
        val program = program("view")
        val given =
            listOf(
                Given("the photos", photos, program.inputIndex(SlotKind.SLOT_KIND_INPUT)),
                Given("the uniforms", uniforms, program.inputIndex(SlotKind.SLOT_KIND_UNIFORM)),
            )
        val at = program.outputIndex(SlotKind.SLOT_KIND_PHOTO)
        val (batch, width) = program.inputs[given[0].index].rowsAndWidth()
        val count = photos.size / width
        if (count == 0) badInput("there are no photos to make views of")
        for (each in given) {
            checkCount(each.what, each.numbers.size, count, program.inputs[each.index])
            program.fill(each.index, 0)
        }
        val views = FloatArray(photos.size)
        for (start in 0 until count step batch) {
            val real = minOf(batch, count - start)
            for (each in given) {
                val row = each.numbers.size / count
                program.floatArgument(each.index).put(each.numbers, start * row, real * row)
            }
            program.run()
            program.floatResult(at).get(views, start * width, real * width)
        }
        if (!views.areFinite()) nonFinite("a view of a photo holds a NaN or an infinity")
        return views
    }

    override fun train(
        program: String,
        weights: Map<String, Tensor>,
        rows: Rows,
        batches: Sequence<IntArray>,
        hyper: Map<String, Double>,
        references: Map<String, Map<String, Tensor>>,
        uniforms: Uniforms?,
        onStep: (Float) -> Unit,
    ): Map<String, Tensor> {
        val loaded = program(program)
        val lossAt = loaded.outputIndex(SlotKind.SLOT_KIND_LOSS)
        val values = hyperParameters(hyper)
        val takesViews = Manifests.program(manifest, program).takesViews(manifest)
        if (takesViews != (rows.views != null)) {
            badInput("program '$program' takes ${if (takesViews) "${manifest.views}" else "no"} views of each photo")
        }
        val fills = manifest.lastBatch == LastBatch.LAST_BATCH_FILLED
        val feed = Feed(loaded, rows, rows.labels.size, manifest.classNamesCount, fills, references, uniforms)
        Arguments(loaded, weights, values, references).write()
        for ((number, batch) in batches.withIndex()) {
            feed.fill(batch)
            loaded.run()
            val loss = loaded.floatResult(lossAt).get(0)
            if (!loss.isFinite()) {
                nonFinite("the loss of step ${number + 1} is $loss; a smaller learning rate may help")
            }
            onStep(loss)
        }
        return carried(loaded, SlotKind.SLOT_KIND_WEIGHT)
    }

    override fun derive(
        program: String,
        hyper: Map<String, Double>,
        references: Map<String, Map<String, Tensor>>,
        rows: Rows?,
    ): Map<String, Tensor> {
        val loaded = program(program)
        val count = rows?.labels?.size ?: 0
        if (loaded.inputs.any { it.kind == SlotKind.SLOT_KIND_INPUT } != (count > 0)) {
            badInput("program '$program' runs ${if (count > 0) "without" else "over"} rows; there are $count")
        }
        val feed =
            rows?.let {
                // Over rows as they are, without views.
                val plain = Rows(it.inputs, it.labels)
                Feed(loaded, plain, count, manifest.classNamesCount, references = references)
            }
        Arguments(loaded, emptyMap(), hyperParameters(hyper), references).write()
        return results(loaded, feed) + carried(loaded, SlotKind.SLOT_KIND_ACCUMULATOR)
    }

    override fun predict(
        weights: Map<String, Tensor>,
        inputs: FloatArray,
        program: String,
        references: Map<String, Map<String, Tensor>>,
    ): FloatArray = ofRows(program, weights, inputs, references, "the logits")

    override fun extract(
        extractor: Map<String, Tensor>,
        inputs: FloatArray,
    ): FloatArray = ofRows("extract", extractor, inputs, emptyMap(), "the extractor's outputs")

    /** The only output of a program, for every row. */
    private fun ofRows(
        name: String,
        weights: Map<String, Tensor>,
        inputs: FloatArray,
        references: Map<String, Map<String, Tensor>>,
        what: String,
    ): FloatArray {
        val program = program(name)
        val (_, width) = program.inputs[program.inputIndex(SlotKind.SLOT_KIND_INPUT)].rowsAndWidth()
        val count = inputs.size / width
        if (count == 0) badInput("there are no rows to compute ${what.removePrefix("the ")} of")
        val rows = Rows(inputs, LongArray(count))
        val feed = Feed(program, rows, count, manifest.classNamesCount, references = references)
        Arguments(program, weights, references = references).write()
        val found = results(program, feed).values.singleOrNull() as? FloatTensor
        return (found ?: unusable("program '$name' does not give one float32 tensor")).toArray()
    }

    /** The outputs that replace no input, by name, for every row of [feed]; null: once, without rows. */
    private fun results(
        program: SlottedProgram,
        feed: Feed?,
    ): Map<String, Tensor> {
        val outputs = program.outputs.withIndex().filter { (_, slot) -> slot.kind != SlotKind.SLOT_KIND_ACCUMULATOR }
        val found =
            outputs.map { (index, slot) ->
                if (feed != null && slot.rowsAndWidth().first != feed.batch) {
                    unusable("program '${program.name}' gives ${slot.shapeList} for ${feed.batch} rows")
                }
                Collected(program, index, slot.spec("", feed?.count?.toLong()).shape)
            }
        for (start in 0 until (feed?.count ?: 1) step (feed?.batch ?: 1)) {
            val real = feed?.let { minOf(it.batch, it.count - start) } ?: 1
            feed?.fill(IntArray(real) { start + it })
            program.run()
            for (each in found) each.take(start, real, isWhole = feed == null)
        }
        return outputs.zip(found) { (_, slot), each -> slot.name to each.tensor(describe(slot)) }.toMap()
    }

    /** The inputs of this kind, by name, as the last run left them. */
    private fun carried(
        program: SlottedProgram,
        kind: SlotKind,
    ): Map<String, Tensor> {
        val found = LinkedHashMap<String, Tensor>()
        for ((index, slot) in program.inputs.withIndex()) {
            if (slot.kind != kind) continue
            found[slot.name] =
                if (slot.dtype == Dtype.DTYPE_INT64) {
                    val values = program.longArgument(index)
                    LongTensor.of(slot.shapeList, LongArray(values.remaining()).also(values::get))
                } else {
                    finite(describe(slot), slot.shapeList, program.floatArgument(index).toArray())
                }
        }
        return found
    }

    private fun hyperParameters(given: Map<String, Double>): Map<String, Double> {
        val known = manifest.hyperParametersList.associateBy { it.name }
        for ((name, value) in given) {
            val rule =
                known[name]
                    ?: badInput("hyper-parameter '$name' is unknown; the bundle has ${known.keys.joinToString()}")
            if (value !in rule.minimum..rule.maximum) {
                badInput("hyper-parameter '$name' is $value; allowed are ${rule.minimum} to ${rule.maximum}")
            }
        }
        return known.mapValues { (name, rule) -> given[name] ?: rule.defaultValue }
    }

    private fun program(name: String): SlottedProgram {
        check(!isClosed) { "the engine is closed" }
        return programs.getOrPut(name) { load(name) }
    }

    private fun load(name: String): SlottedProgram {
        val (message, digest) =
            try {
                Manifests.program(manifest, name) to Manifests.programPart(manifest, name, FORMAT)
            } catch (error: ManifestException) {
                unusable("program '$name' cannot be used: ${error.message}", error)
            }
        val file = bundle.part(digest)
        val found =
            try {
                sha256(file)
            } catch (error: IOException) {
                throw unreadable(name, error)
            }
        if (!found.contentEquals(digest)) {
            unusable("program '$name' cannot be used: its file, part ${digest.toHex()}, is damaged")
        }
        val slots = Slots(message)
        if (!runtime.isInProcess) {
            checkMayRun()
            return SlottedProgram(slots, Counted(counting { runtime.load(slots.form, file) }))
        }
        val key = newSha256()
        key.update(sha256(message.toByteArray()))
        key.update(digest)
        key.update(runtime.version.toByteArray())
        return trials.run(
            name,
            key.digest(),
            check = ::checkMayRun,
            load = { SlottedProgram(slots, runtime.load(slots.form, file)) },
            trial = ::runOnce,
        )
    }

    private fun checkMayRun() {
        crashes.refusal(bundle.id)?.let { unusable(it) }
    }

    /** Count the end of the process in which programs run; the next one gets them anew. */
    private fun <T> counting(work: () -> T): T =
        try {
            work()
        } catch (error: EngineException) {
            if (error.reason != Reason.CRASHED) throw error
            closePrograms()
            throw EngineException(Reason.CRASHED, "${error.message}; ${crashes.note(bundle.id)}", error)
        }

    /** Run a program on zeros and on ones, as trials on a desktop do. */
    private fun runOnce(program: SlottedProgram) {
        for (value in 0..1) {
            for (index in program.inputs.indices) program.fill(index, value)
            program.run()
        }
    }

    override fun close() {
        isClosed = true
        closePrograms()
    }

    private fun closePrograms() {
        programs.values.forEach(SlottedProgram::close)
        programs.clear()
    }

    private inner class Counted(
        private val loaded: LoadedProgram,
    ) : LoadedProgram by loaded {
        override fun run() = counting(loaded::run)
    }

    private class Given(
        val what: String,
        val numbers: FloatArray,
        val index: Int,
    )

    /** An output of a program, for every row. */
    private class Collected(
        private val program: SlottedProgram,
        private val index: Int,
        private val shape: List<Long>,
    ) {
        private val count = Math.toIntExact(shape.fold(1L, Math::multiplyExact))
        private val isLong = program.outputs[index].dtype == Dtype.DTYPE_INT64
        private val longs = LongArray(if (isLong) count else 0)
        private val floats = FloatArray(if (isLong) 0 else count)

        /** Copy the last run's first [rows] rows to row [start], or all of it. */
        fun take(
            start: Int,
            rows: Int,
            isWhole: Boolean,
        ) {
            val width = if (isWhole) count else count / shape[0].toInt()
            if (isLong) {
                program.longResult(index).get(longs, start * width, rows * width)
            } else {
                program.floatResult(index).get(floats, start * width, rows * width)
            }
        }

        fun tensor(name: String): Tensor = if (isLong) LongTensor.of(shape, longs) else finite(name, shape, floats)
    }

    private companion object {
        val FORMAT = ProgramFormat.PROGRAM_FORMAT_PTE

        fun org.fedlens.proto.v1.Slot.rowsAndWidth(): Pair<Int, Int> {
            val rows = shapeList.firstOrNull() ?: unusable("${describe(this)} has no rows")
            return rows.toInt() to (shapeList.fold(1L, Long::times) / rows).toInt()
        }

        fun FloatBuffer.toArray(): FloatArray = FloatArray(remaining()).also(::get)

        fun FloatArray.areFinite(): Boolean = all { it.isFinite() }

        fun finite(
            name: String,
            shape: List<Long>,
            values: FloatArray,
        ): FloatTensor {
            if (!values.areFinite()) nonFinite("tensor $name holds a NaN or an infinity")
            return FloatTensor.of(shape, values)
        }

        fun nonFinite(message: String): Nothing = throw EngineException(Reason.NON_FINITE, message)
    }
}

/** The reason why phones cannot run a bundle; null if they can. */
internal fun unfitForPhones(manifest: Manifest): String? {
    if (manifest.bundleClass != BundleClass.BUNDLE_CLASS_FROZEN_BACKBONE) {
        return "the bundle trains all layers of its model, which takes a phone too long; " +
            "export a bundle with a frozen backbone"
    }
    return manifest.programsList
        .firstOrNull { program -> program.filesList.none { it.format == ProgramFormat.PROGRAM_FORMAT_PTE } }
        ?.let { "the bundle has program '${it.name}', but not for phones (.pte): export it with --target pte" }
}
