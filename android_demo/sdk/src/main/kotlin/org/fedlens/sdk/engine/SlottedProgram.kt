package org.fedlens.sdk.engine

import org.fedlens.proto.v1.Program
import org.fedlens.proto.v1.Slot
import org.fedlens.proto.v1.SlotKind
import org.fedlens.sdk.BlobException
import org.fedlens.sdk.blob.TensorSpec
import org.fedlens.sdk.engine.ProgramForm.Companion.MOST_BYTES
import org.fedlens.sdk.engine.ProgramForm.Companion.MOST_DIMENSIONS
import java.io.Closeable
import java.nio.Buffer
import java.nio.ByteBuffer
import java.nio.FloatBuffer
import java.nio.LongBuffer

/** A loaded program with the slots of its arguments and results. */
internal class SlottedProgram(
    private val slots: Slots,
    private val loaded: LoadedProgram,
) : Closeable by loaded {
    val name: String get() = slots.form.name
    val inputs: List<Slot> get() = slots.inputs
    val outputs: List<Slot> get() = slots.outputs

    /** The references that need not be bound. */
    val optional: Set<String> get() = slots.optional
    private val arguments = views(slots.form.inputs, loaded.arguments)
    private val results = views(slots.form.outputs, loaded.results)

    fun run(): Unit = loaded.run()

    /** Index of the only input of this kind; with none or several, the bundle is unusable. */
    fun inputIndex(kind: SlotKind): Int = only(kind, inputs)

    /** Index of the only output of this kind; with none or several, the bundle is unusable. */
    fun outputIndex(kind: SlotKind): Int = only(kind, outputs)

    /** The memory of a float32 argument, from its first element to its last. */
    fun floatArgument(index: Int): FloatBuffer = floats(arguments[index], inputs[index])

    /** The memory of an int64 argument, from its first element to its last. */
    fun longArgument(index: Int): LongBuffer = longs(arguments[index], inputs[index])

    /** The memory of a float32 result, from its first element to its last. */
    fun floatResult(index: Int): FloatBuffer = floats(results[index], outputs[index])

    /** The memory of an int64 result, from its first element to its last. */
    fun longResult(index: Int): LongBuffer = longs(results[index], outputs[index])

    /** Sets every element of an argument to [value]. */
    fun fill(
        index: Int,
        value: Int,
    ) {
        when (val argument = arguments[index]) {
            is FloatBuffer -> for (i in 0 until argument.capacity()) argument.put(i, value.toFloat())
            is LongBuffer -> for (i in 0 until argument.capacity()) argument.put(i, value.toLong())
        }
    }

    private fun floats(
        buffer: Any,
        slot: Slot,
    ): FloatBuffer = (buffer as? FloatBuffer)?.fromStart() ?: wrongType(slot, "float32")

    private fun longs(
        buffer: Any,
        slot: Slot,
    ): LongBuffer = (buffer as? LongBuffer)?.fromStart() ?: wrongType(slot, "int64")

    private fun wrongType(
        slot: Slot,
        needed: String,
    ): Nothing = unusable("program '$name': ${describe(slot)} is not $needed")

    private fun only(
        kind: SlotKind,
        slots: List<Slot>,
    ): Int {
        val found = slots.indices.filter { slots[it].kind == kind }
        if (found.size != 1) unusable("program '$name' has ${found.size} slots of kind $kind where one is needed")
        return found[0]
    }

    private companion object {
        fun views(
            forms: List<TensorSpec>,
            buffers: List<ByteBuffer>,
        ): List<Any> =
            forms.zip(buffers) { form, buffer ->
                if (form.isInteger) buffer.asLongBuffer() else buffer.asFloatBuffer()
            }
    }
}

/** The inputs and outputs of a program's `.pte`: all slots except frozen inputs, which the file contains. */
internal class Slots(
    program: Program,
) {
    val inputs: List<Slot> = program.inputsList.filter { it.kind != SlotKind.SLOT_KIND_FROZEN }
    val outputs: List<Slot> = program.outputsList
    val optional: Set<String> = program.optionalList.toSet()
    val form: ProgramForm

    init {
        val forms = listOf(inputs, outputs).map { slots -> slots.map { spec(program.name, it) } }
        val bytes = forms.sumOf { specs -> specs.sumOf { it.bytes } }
        if (bytes > MOST_BYTES) {
            unusable("program '${program.name}' takes and gives $bytes bytes; at most $MOST_BYTES are allowed")
        }
        val where = inputs.withIndex().associate { (i, slot) -> slot.kind to slot.name to i }
        val replaced = outputs.map { where[it.kind to it.name] ?: -1 }
        for ((output, target) in forms[1].zip(replaced)) {
            if (target < 0) continue
            val input = forms[0][target]
            if (input.dtype != output.dtype || input.shape != output.shape) {
                unusable("program '${program.name}' takes $input and gives $output in its place")
            }
        }
        form = ProgramForm(program.name, forms[0], forms[1], replaced)
    }

    private companion object {
        fun spec(
            program: String,
            slot: Slot,
        ): TensorSpec {
            val what = "program '$program': ${describe(slot)} has shape ${slot.shapeList}"
            // Integers are unsigned in the schema, but signed on the JVM.
            if (slot.shapeCount > MOST_DIMENSIONS || slot.shapeList.any { it !in 1..Int.MAX_VALUE }) unusable(what)
            val spec = TensorSpec(slot.name.ifEmpty { slot.kind.name }, slot.dtype, slot.shapeList)
            try {
                if (spec.bytes > MOST_BYTES) unusable("$what; at most $MOST_BYTES bytes are allowed")
            } catch (error: BlobException) {
                unusable(what, error)
            }
            return spec
        }
    }
}

/** A slot's description for messages. */
internal fun describe(slot: Slot): String = if (slot.name.isEmpty()) slot.kind.name else "'${slot.name}'"

/** The same buffer, ready to be read or written as a whole. */
internal fun <B : Buffer> B.fromStart(): B {
    // On Android 8 only Buffer declares this method; newer Java versions override it in each subclass.
    val plain: Buffer = this
    plain.clear()
    return this
}
