package org.fedlens.sdk.engine

import org.fedlens.proto.v1.Dtype
import org.fedlens.proto.v1.Slot
import org.fedlens.proto.v1.SlotKind
import org.fedlens.sdk.blob.FloatTensor
import org.fedlens.sdk.blob.LongTensor
import org.fedlens.sdk.blob.RUN_ELEMENTS
import org.fedlens.sdk.blob.Tensor
import org.fedlens.sdk.blob.TensorSpec
import org.fedlens.sdk.blob.forEachRun

/**
 * The arguments of a program at the start of a stage; later only batches and carried state change.
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
                SlotKind.SLOT_KIND_WEIGHT -> copy(index, slot, weights, "the weights", slot.name)
                SlotKind.SLOT_KIND_EXTRACTOR -> copy(index, slot, weights, "the extractor", slot.name)
                SlotKind.SLOT_KIND_REFERENCE -> {
                    val reference = slot.name.substringBefore('/')
                    val tensors =
                        references[reference]
                            ?: badInput("reference '$reference' is missing; the bundle's step compares with it")
                    copy(index, slot, tensors, "reference '$reference'", slot.name.substringAfter('/', ""))
                }
                SlotKind.SLOT_KIND_OPTIMISER, SlotKind.SLOT_KIND_COUNTER -> program.fill(index, 0)
                SlotKind.SLOT_KIND_INPUT, SlotKind.SLOT_KIND_LABEL, SlotKind.SLOT_KIND_MASK -> Unit
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
        slot: Slot,
        tensors: Map<String, Tensor>,
        where: String,
        name: String,
    ) {
        val tensor = tensors[name] ?: badInput("tensor '$name' is missing from $where")
        val type = if (tensor is LongTensor) Dtype.DTYPE_INT64 else Dtype.DTYPE_FLOAT32
        val found = TensorSpec(name, type, tensor.shape)
        val wanted = TensorSpec(name, slot.dtype, slot.shapeList)
        if (found != wanted) {
            badInput("tensor '$name' of $where: found ${found.form}, the bundle takes ${wanted.form}")
        }
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
