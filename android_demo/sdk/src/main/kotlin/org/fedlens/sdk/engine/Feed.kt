package org.fedlens.sdk.engine

import org.fedlens.proto.v1.Slot
import org.fedlens.proto.v1.SlotKind
import org.fedlens.sdk.blob.FloatTensor
import org.fedlens.sdk.blob.LongTensor
import org.fedlens.sdk.blob.Tensor

/**
 * The batches of a program with one input of kind `SLOT_KIND_INPUT`.
 *
 * @param rows The source of the batches.
 * @param count Number of rows.
 * @param classes Number of classes; every label is below it.
 * @param filled True if every batch must be full, as for trainable BatchNorm.
 * @param references References, of some of which the program takes the rows of each batch.
 * @param uniforms Random numbers for each batch; needed if the program takes some.
 * @throws org.fedlens.sdk.EngineException The rows are not what the program takes.
 */
internal class Feed(
    program: SlottedProgram,
    private val rows: Rows,
    val count: Int,
    classes: Int,
    private val filled: Boolean = false,
    references: Map<String, Map<String, Tensor>> = emptyMap(),
    private val uniforms: Uniforms? = null,
) {
    private val slot = program.inputs[program.inputIndex(SlotKind.SLOT_KIND_INPUT)]

    /** Rows per run. */
    val batch: Int = (slot.shapeList.firstOrNull() ?: unusable("program '${program.name}' takes no batch")).toInt()
    private val width = (slot.shapeList.fold(1L, Long::times) / batch).toInt()
    private val inputs = program.floatArgument(program.inputIndex(SlotKind.SLOT_KIND_INPUT))
    private val labels = ofEachRow(program, SlotKind.SLOT_KIND_LABEL).map(program::longArgument)
    private val masks = ofEachRow(program, SlotKind.SLOT_KIND_MASK).map(program::floatArgument)
    private val views = if (rows.views == null) FloatArray(0) else FloatArray(batch * width)
    private val targets =
        ofEachRow(program, SlotKind.SLOT_KIND_TARGET).mapNotNull { index ->
            program.fill(index, 0)
            val target = program.inputs[index]
            val shape = listOf(count.toLong()) + target.shapeList.drop(1)
            program.bound(target, references, shape)?.let { Target(program, index, it) }
        }
    private val random = ofEachRow(program, SlotKind.SLOT_KIND_UNIFORM).map(program::floatArgument)
    private var real = batch
    private var step = 0

    init {
        val given = rows.views
        if (given == null) {
            checkCount("the rows' inputs", rows.inputs.size, count, slot)
        } else if (given.width != width) {
            badInput("the rows' views: found ${given.width} numbers a row, the bundle takes $width")
        }
        if (rows.labels.size != count) badInput("the rows' labels: found ${rows.labels.size} for $count rows")
        for (label in rows.labels) {
            if (label !in 0 until classes) badInput("label $label is not one of 0 to ${classes - 1}")
        }
        if (random.isNotEmpty() && uniforms == null) {
            badInput("program '${program.name}' takes random numbers, and none are given")
        }
        for (i in 0 until inputs.capacity()) inputs.put(i, 0f)
        for (buffer in labels) for (i in 0 until batch) buffer.put(i, 0)
        mask(0, batch, 1f)
    }

    /**
     * Write these rows to the start of the batch and mask the rest; draw new random numbers.
     *
     * @throws org.fedlens.sdk.EngineException There are too many or too few rows, or one does not exist.
     */
    fun fill(indices: IntArray) {
        if (indices.size !in 1..batch || (filled && indices.size != batch)) {
            val allowed = if (filled) "exactly $batch" else "1 to $batch"
            badInput("a batch of ${indices.size} rows; the bundle takes $allowed")
        }
        if (indices.any { it !in 0 until count }) badInput("a batch asks for a row outside 0 to ${count - 1}")
        // Rows left over from an earlier batch have no effect: the programs mask their inputs.
        inputs.fromStart()
        val given = rows.views
        if (given == null) {
            for (index in indices) inputs.put(rows.inputs, index * width, width)
        } else {
            given.take(indices, views)
            inputs.put(views, 0, indices.size * width)
        }
        for (buffer in labels) for ((i, index) in indices.withIndex()) buffer.put(i, rows.labels[index])
        for (target in targets) target.fill(indices)
        for ((slot, buffer) in random.withIndex()) {
            buffer.fromStart().put(checkNotNull(uniforms).of(step, slot, buffer.capacity()))
        }
        step++
        if (indices.size != real) {
            mask(0, indices.size, 1f)
            mask(indices.size, batch, 0f)
            real = indices.size
        }
    }

    private fun mask(
        from: Int,
        until: Int,
        value: Float,
    ) {
        for (buffer in masks) for (i in from until until) buffer.put(i, value)
    }

    private fun ofEachRow(
        program: SlottedProgram,
        kind: SlotKind,
    ): List<Int> {
        val found = program.inputs.indices.filter { program.inputs[it].kind == kind }
        for (index in found) {
            val shape = program.inputs[index].shapeList
            if (shape.firstOrNull() != batch.toLong()) {
                unusable("program '${program.name}': $kind has shape $shape, not $batch rows")
            }
        }
        return found
    }
}

/** A tensor with a row for each of the rows, of which a program takes those of a batch. */
private class Target(
    private val program: SlottedProgram,
    private val index: Int,
    private val tensor: Tensor,
) {
    private val width = (tensor.count / tensor.shape[0]).toInt()

    fun fill(rows: IntArray) {
        when (tensor) {
            is FloatTensor -> {
                val row = FloatArray(width)
                val target = program.floatArgument(index)
                for (number in rows) target.put(row.also { tensor.read(number.toLong() * width, it) })
            }
            is LongTensor -> {
                val row = LongArray(width)
                val target = program.longArgument(index)
                for (number in rows) target.put(row.also { tensor.read(number.toLong() * width, it) })
            }
        }
    }
}

/** Check that [numbers] is the size of [rows] rows for [slot]. */
internal fun checkCount(
    what: String,
    numbers: Int,
    rows: Int,
    slot: Slot,
) {
    val shape = listOf(rows.toLong()) + slot.shapeList.drop(1)
    if (numbers.toLong() != shape.fold(1L, Long::times)) {
        badInput("$what: found $numbers numbers, the bundle takes float32$shape")
    }
}
