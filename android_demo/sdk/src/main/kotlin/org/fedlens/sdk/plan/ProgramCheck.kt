package org.fedlens.sdk.plan

import org.fedlens.proto.v1.Dtype
import org.fedlens.proto.v1.Manifest
import org.fedlens.proto.v1.Program
import org.fedlens.proto.v1.Slot
import org.fedlens.proto.v1.SlotKind
import org.fedlens.sdk.ManifestException
import org.fedlens.sdk.blob.TensorSpec

/**
 * The check of the slots of every program that local plans can name.
 *
 *     kind      inputs                                                            outputs
 *     trains    weights, optimiser, counters, rows, hyper, references, uniforms   the same weights, optimiser, counters;
 *                                                                                 loss and logits
 *     derives   hyper, references; rows and accumulators, or no rows              the same accumulators, or results, or
 *                                                                                 weights (without rows)
 *     predicts  weights, input, mask, references                                  logits
 */
internal class ProgramCheck(
    private val manifest: Manifest,
) {
    private val weights =
        counted(manifest.tensorsList.map { TensorSpec(it.name, it.dtype, it.shapeList) })
    private val tables = HashMap<String, List<String>>()

    /** @throws ManifestException A program lacks a slot, has one too many, or one that does not fit the manifest. */
    fun run() {
        for (program in manifest.programsList) {
            if (program.kind != ProgramKind.OTHER) check(program)
        }
    }

    private fun check(program: Program) {
        val kind = program.kind
        for ((slots, known) in listOf(program.inputsList to INPUTS, program.outputsList to OUTPUTS)) {
            for (slot in slots) {
                program.need(slot.kind in known.getValue(kind)) {
                    "has a slot of kind ${slot.kind}, which one that ${kind.name.lowercase()}s cannot"
                }
            }
            val repeated = counted(slots.map { it.kind to it.name }).filterValues { it > 1 }.keys
            program.need(repeated.isEmpty()) { "has slot $repeated twice" }
        }
        checkRows(program)
        checkReferences(program)
        when (kind) {
            ProgramKind.TRAIN -> {
                program.need(slots(program.outputsList, CARRIED) == slots(program.inputsList, CARRIED)) {
                    "does not give every weight, moment and counter that it takes"
                }
                program.need(weightsOf(program.outputsList) == weights) {
                    "does not train exactly the exchangeable tensors"
                }
                program.need(program.batch > 0) { "trains without rows" }
                val ends = program.outputsList.map { it.kind }.filter { it !in CARRIED }
                program.need(ends == listOf(SlotKind.SLOT_KIND_LOSS, SlotKind.SLOT_KIND_LOGITS)) {
                    "must give loss and logits last"
                }
                program.need(program.objective.isNotEmpty()) { "names no objective" }
            }
            ProgramKind.PREDICT -> {
                program.need(weightsOf(program.inputsList) == weights) {
                    "does not take exactly the exchangeable tensors"
                }
                program.need(program.batch > 0) { "predicts without rows" }
                program.need(program.name != Plans.PREDICT || program.references.isEmpty()) {
                    "takes references; only others may"
                }
            }
            else -> {
                checkDerive(program)
                val schema = program.outputsList.map { it.spec(it.name).toString() }.sorted()
                program.need(tables.getOrPut(program.makes) { schema } == schema) {
                    "makes another '${program.makes}' than others do"
                }
            }
        }
    }

    private fun checkRows(program: Program) {
        val found = program.input
        if (found == null) {
            program.need(program.inputsList.none { it.kind in ROWS }) {
                "takes labels, masks, targets or uniforms, but no input"
            }
            return
        }
        val batch = found.shapeList.firstOrNull() ?: 0
        program.need(batch > 0) { "has an input of shape ${found.shapeList}" }
        for (slot in program.inputsList) {
            if (slot.kind !in ROWS) continue
            program.need(slot.shapeList.firstOrNull() == batch) { "has slot '${slot.name}' of other than $batch rows" }
            if (slot.kind == SlotKind.SLOT_KIND_LABEL || slot.kind == SlotKind.SLOT_KIND_MASK) {
                val isLabel = slot.kind == SlotKind.SLOT_KIND_LABEL
                val dtype = if (isLabel) Dtype.DTYPE_INT64 else Dtype.DTYPE_FLOAT32
                program.need(slot.dtype == dtype && slot.shapeCount == 1) {
                    "has a label or mask of another type or shape"
                }
            }
        }
        val own = program.kind != ProgramKind.DERIVE && program.name in setOf("step", Plans.PREDICT)
        program.need(!own || batch == manifest.batch.toLong()) { "has batch $batch, the manifest ${manifest.batch}" }
    }

    private fun checkReferences(program: Program) {
        val known = program.references
        program.need(known.values.flatten().all { it.tensor.isNotEmpty() }) {
            "has a reference without a tensor's name"
        }
        val optional = program.optionalList.toSet()
        program.need(known.keys.containsAll(optional)) {
            "names ${optional - known.keys} as optional, which is no reference of it"
        }
        program.need(optional.size == program.optionalCount) { "names an optional reference twice" }
        val present = program.inputsList.filter { it.kind == SlotKind.SLOT_KIND_PRESENT }.map { it.name }
        program.need(optional.containsAll(present)) { "takes the presence of a reference that is not optional" }
    }

    private fun checkDerive(program: Program) {
        val kinds = program.outputsList.mapTo(HashSet()) { it.kind }
        program.need(kinds.size == 1) { "gives outputs of more than one kind" }
        val carried = setOf(SlotKind.SLOT_KIND_ACCUMULATOR)
        program.need(slots(program.inputsList, carried) == slots(program.outputsList, carried)) {
            "does not hand on its accumulators"
        }
        program.need(kinds != carried || program.batch > 0) { "accumulates without rows" }
        val makesWeights = program.makes == WEIGHTS
        program.need(makesWeights == (kinds == setOf(SlotKind.SLOT_KIND_WEIGHT))) {
            "makes '${program.makes}', not what it gives"
        }
        if (makesWeights) {
            program.need(weightsOf(program.outputsList) == weights) { "does not make exactly the exchangeable tensors" }
            program.need(program.batch == 0) { "makes weights from rows" }
        }
        if (program.makesRows) {
            val batch = program.batch.toLong()
            program.need(program.outputsList.all { it.shapeList.firstOrNull() == batch }) {
                "does not give a result for each row"
            }
        }
    }

    private companion object {
        val ROWS =
            setOf(
                SlotKind.SLOT_KIND_INPUT,
                SlotKind.SLOT_KIND_LABEL,
                SlotKind.SLOT_KIND_MASK,
                SlotKind.SLOT_KIND_TARGET,
                SlotKind.SLOT_KIND_UNIFORM,
            )
        val CARRIED = setOf(SlotKind.SLOT_KIND_WEIGHT, SlotKind.SLOT_KIND_OPTIMISER, SlotKind.SLOT_KIND_COUNTER)
        val BOUND = setOf(SlotKind.SLOT_KIND_HYPER, SlotKind.SLOT_KIND_REFERENCE, SlotKind.SLOT_KIND_PRESENT)
        val INPUTS =
            mapOf(
                ProgramKind.TRAIN to CARRIED + ROWS + BOUND,
                ProgramKind.DERIVE to ROWS - SlotKind.SLOT_KIND_UNIFORM + BOUND + SlotKind.SLOT_KIND_ACCUMULATOR,
                ProgramKind.PREDICT to
                    BOUND - SlotKind.SLOT_KIND_HYPER +
                    setOf(SlotKind.SLOT_KIND_WEIGHT, SlotKind.SLOT_KIND_INPUT, SlotKind.SLOT_KIND_MASK),
            )
        val OUTPUTS =
            mapOf(
                ProgramKind.TRAIN to CARRIED + setOf(SlotKind.SLOT_KIND_LOSS, SlotKind.SLOT_KIND_LOGITS),
                ProgramKind.DERIVE to
                    setOf(SlotKind.SLOT_KIND_ACCUMULATOR, SlotKind.SLOT_KIND_RESULT, SlotKind.SLOT_KIND_WEIGHT),
                ProgramKind.PREDICT to setOf(SlotKind.SLOT_KIND_LOGITS),
            )

        fun slots(
            slots: List<Slot>,
            kinds: Set<SlotKind>,
        ) = counted(slots.filter { it.kind in kinds }.map { it.kind to it.spec(it.name) })

        fun weightsOf(slots: List<Slot>) =
            counted(slots.filter { it.kind == SlotKind.SLOT_KIND_WEIGHT }.map { it.spec(it.name) })

        fun <T> counted(all: List<T>): Map<T, Int> = all.groupingBy { it }.eachCount()

        inline fun Program.need(
            condition: Boolean,
            message: () -> String,
        ) {
            if (!condition) {
                throw ManifestException(ManifestException.Reason.INVALID, "program '$name' ${message()}")
            }
        }
    }
}
