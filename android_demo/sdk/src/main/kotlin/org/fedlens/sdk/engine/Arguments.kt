package org.fedlens.sdk.engine

import org.fedlens.proto.v1.Slot
import org.fedlens.proto.v1.SlotKind
import org.fedlens.sdk.blob.FloatTensor
import org.fedlens.sdk.blob.LongTensor
import org.fedlens.sdk.blob.RUN_ELEMENTS
import org.fedlens.sdk.blob.Tensor
import org.fedlens.sdk.blob.TensorSpec
import org.fedlens.sdk.blob.forEachRun
import org.fedlens.sdk.blob.spec
import org.fedlens.sdk.plan.tensor

/**
 * The arguments of a program before the first batch; later only batches and carried state change.
 *
 * Failures are an [org.fedlens.sdk.EngineException]: a tensor is missing or has another shape or type, or the program
 * has an input of an unknown kind.
 */
internal class Arguments(
    private val program: SlottedProgram,
    private val weights: Map<String, Tensor>,
    private val hyper: Map<String, Double> = emptyMap(),
    private val references: Map<String, Map<String, Tensor>> = emptyMap(),
) {
    private val floats = FloatArray(RUN_ELEMENTS)
    private val longs = LongArray(RUN_ELEMENTS)

    /** Write all arguments except those that take batches. */
    fun write() {
        for ((index, slot) in program.inputs.withIndex()) {
            when (slot.kind) {
                SlotKind.SLOT_KIND_WEIGHT -> copy(index, checked(slot, slot.name, weights, "the weights"))
                SlotKind.SLOT_KIND_EXTRACTOR -> copy(index, checked(slot, slot.name, weights, "the extractor"))
                SlotKind.SLOT_KIND_REFERENCE -> {
                    val tensor = program.bound(slot, references, slot.shapeList)
                    if (tensor == null) program.fill(index, 0) else copy(index, tensor)
                }
                SlotKind.SLOT_KIND_PRESENT -> program.fill(index, if (slot.name in references) 1 else 0)
                SlotKind.SLOT_KIND_OPTIMISER, SlotKind.SLOT_KIND_COUNTER, SlotKind.SLOT_KIND_ACCUMULATOR ->
                    program.fill(index, 0)
                SlotKind.SLOT_KIND_INPUT, SlotKind.SLOT_KIND_LABEL, SlotKind.SLOT_KIND_MASK,
                SlotKind.SLOT_KIND_TARGET, SlotKind.SLOT_KIND_UNIFORM,
                -> Unit
                SlotKind.SLOT_KIND_HYPER -> {
                    val value =
                        hyper[slot.name] ?: unusable("program '${program.name}' needs a value for '${slot.name}'")
                    if (slot.shapeCount != 0) unusable("hyper-parameter '${slot.name}' is not a scalar")
                    program.floatArgument(index).put(0, value.toFloat())
                }
                else -> unusable("this engine does not support an input of kind ${slot.kind}")
            }
        }
    }

    private fun copy(
        index: Int,
        tensor: Tensor,
    ) {
        when (tensor) {
            is FloatTensor -> {
                val target = program.floatArgument(index)
                tensor.forEachRun { from, count ->
                    tensor.read(from, floats, 0, count)
                    target.put(floats, 0, count)
                }
            }
            is LongTensor -> {
                val target = program.longArgument(index)
                tensor.forEachRun { from, count ->
                    tensor.read(from, longs, 0, count)
                    target.put(longs, 0, count)
                }
            }
        }
    }
}

/** The tensor of a reference for a slot, of this shape; null: the reference is optional, and not bound. */
internal fun SlottedProgram.bound(
    slot: Slot,
    references: Map<String, Map<String, Tensor>>,
    shape: List<Long>,
): Tensor? {
    val reference = slot.name.substringBefore('/')
    val tensors = references[reference]
    if (tensors != null) return checked(slot, slot.tensor, tensors, "reference '$reference'", shape)
    if (reference !in optional) badInput("reference '$reference' is missing; program '$name' needs it")
    return null
}

private fun checked(
    slot: Slot,
    name: String,
    tensors: Map<String, Tensor>,
    where: String,
    shape: List<Long> = slot.shapeList,
): Tensor {
    val tensor = tensors[name] ?: badInput("tensor '$name' is missing from $where")
    val (found, wanted) = tensor.spec(name) to TensorSpec(name, slot.dtype, shape)
    if (found != wanted) badInput("tensor '$name' of $where: found ${found.form}, the bundle takes ${wanted.form}")
    return tensor
}
