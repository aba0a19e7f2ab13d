package org.fedlens.sdk.engine

import org.fedlens.sdk.EngineException
import org.fedlens.sdk.EngineException.Reason
import org.fedlens.sdk.blob.TensorSpec
import org.fedlens.sdk.engine.ProgramForm.Companion.MOST_BYTES
import org.fedlens.sdk.engine.ProgramForm.Companion.MOST_DIMENSIONS
import org.fedlens.sdk.toHex
import java.io.File
import java.io.FileInputStream
import java.io.IOException
import java.nio.Buffer
import java.nio.ByteBuffer
import java.nio.ByteOrder
import java.nio.channels.FileChannel

/**
 * Cheap checks of a `.pte` file before a runtime sees it: its type, its length, and whether its method has the inputs
 * and outputs of the manifest.
 *
 *     offset  bytes
 *     0       4      where the root table of the program stands
 *     4       4      "ET" and two digits, the version of the schema
 *     8       4      "eh" and two digits, the version of the header that follows
 *     12      4      length of that header, itself included
 *     16      8      length of the program
 *     24      8      where its segments begin; 0: it has none
 *     32      8      length of all segments; of headers of 32 bytes or more
 *
 * Numbers are little-endian; the program is a FlatBuffer. A file that passes may still be damaged or hostile: see
 * [Trials].
 */
internal class PteFile private constructor(
    private val form: ProgramForm,
    private val raw: ByteBuffer,
) {
    private fun checkLengths() {
        val size = raw.limit().toLong()
        if (size < PREFIX_BYTES || !isMarked("ET", MAGIC_AT)) {
            val begins = bytes(0, minOf(size, 8L).toInt()).toHex().ifEmpty { "nothing" }
            refuse("it begins with $begins; no ExecuTorch program does")
        }
        val root = raw.getInt(0).toLong() and 0xFFFF_FFFFL
        val header = raw.getInt(HEADER_LENGTH_AT).toLong() and 0xFFFF_FFFFL
        val program = raw.getLong(PROGRAM_LENGTH_AT)
        val base = raw.getLong(SEGMENTS_AT)
        val ends = 8 + header
        if (!isMarked("eh", HEADER_MAGIC_AT) || header !in LEAST_HEADER..MOST_HEADER || ends > size) {
            refuse("it has no header that tells its length: found $header bytes")
        }
        if (program !in ends..size) {
            refuse("it is truncated: its program has ${unsigned(program)} bytes, the file $size")
        }
        if (root !in ends until program) {
            refuse("its root table stands at $root, outside the program's $program bytes")
        }
        var end = program
        if (base != 0L) {
            val segments = if (header >= LARGER_HEADER) raw.getLong(SEGMENTS_LENGTH_AT) else 0
            if (base in 0 until program) {
                refuse("its segments begin at $base, inside the program's $program bytes")
            }
            end = if (base < 0 || segments < 0) -1 else base + segments
        }
        if (end !in 0..size) {
            refuse("it is truncated: its segments end at ${unsigned(end)}, the file at $size")
        }
        // On Android 8 only Buffer declares this method.
        val plain: Buffer = raw
        plain.limit(program.toInt())
    }

    private fun checkMethod() {
        val root = FlatTable.root(raw)
        val methods = root.count(EXECUTION_PLANS)
        if (methods != 1L) refuse("it has $methods methods where one is needed, '$METHOD'")
        val method = root.tableOf(EXECUTION_PLANS, 0)
        val name = method.text(PLAN_NAME, MOST_NAME_BYTES)
        if (name != METHOD) refuse("its method is '$name' where '$METHOD' is needed")
        checkTensors(method, "inputs", PLAN_INPUTS, form.inputs)
        checkTensors(method, "outputs", PLAN_OUTPUTS, form.outputs)
    }

    private fun checkTensors(
        method: FlatTable,
        what: String,
        field: Int,
        expected: List<TensorSpec>,
    ) {
        val count = method.count(field)
        if (count != expected.size.toLong()) {
            unusable("program '${form.name}' has $count $what, its manifest says ${expected.size}")
        }
        for ((i, wanted) in expected.withIndex()) {
            val value = method.tableOf(PLAN_VALUES, method.intOf(field, i.toLong()).toLong())
            val found = if (value.byte(VALUE_TYPE) == TENSOR) describe(value.table(VALUE)) else "no tensor"
            val needed = wanted.form
            if (found != needed) {
                unusable("program '${form.name}': $what hold $found where its manifest says $needed (${wanted.name})")
            }
        }
    }

    /** Type and shape of a tensor, for messages. */
    private fun describe(tensor: FlatTable?): String {
        if (tensor == null) return "no tensor"
        val rank = tensor.count(TENSOR_SIZES)
        if (rank > MOST_DIMENSIONS) return "a tensor of $rank dimensions"
        val sizes = (0 until rank).map { tensor.intOf(TENSOR_SIZES, it) }
        val order = (0 until tensor.count(TENSOR_ORDER)).take(MOST_DIMENSIONS + 1)
        val isRowMajor = order.all { tensor.byteOf(TENSOR_ORDER, it) == it.toInt() }
        val type = NAMES[tensor.byte(TENSOR_TYPE)] ?: "values of type ${tensor.byte(TENSOR_TYPE)}"
        return "$type$sizes${if (isRowMajor) "" else " in another order of dimensions"}"
    }

    private fun isMarked(
        letters: String,
        at: Int,
    ): Boolean {
        val (found, digits) = bytes(at, 4).map { it.toInt().toChar() }.chunked(2)
        return String(found.toCharArray()) == letters && digits.all { it in '0'..'9' }
    }

    private fun bytes(
        at: Int,
        count: Int,
    ) = ByteArray(count) { raw.get(at + it) }

    private fun refuse(reason: String): Nothing =
        unusable("program '${form.name}' cannot be used: program refused: $reason")

    companion object {
        /** Name of the only method of a file. */
        const val METHOD = "forward"

        private const val MAGIC_AT = 4
        private const val HEADER_MAGIC_AT = 8
        private const val HEADER_LENGTH_AT = 12
        private const val PROGRAM_LENGTH_AT = 16
        private const val SEGMENTS_AT = 24
        private const val SEGMENTS_LENGTH_AT = 32
        private const val PREFIX_BYTES = 32
        private const val LEAST_HEADER = PREFIX_BYTES - 8L
        private const val LARGER_HEADER = LEAST_HEADER + 8L
        private const val MOST_HEADER = 1L shl 10
        private const val MOST_NAME_BYTES = 64

        // Field and union numbers of ExecuTorch's schema, `program.fbs`.
        private const val EXECUTION_PLANS = 1
        private const val PLAN_NAME = 0
        private const val PLAN_VALUES = 2
        private const val PLAN_INPUTS = 3
        private const val PLAN_OUTPUTS = 4
        private const val VALUE_TYPE = 0
        private const val VALUE = 1
        private const val TENSOR = 5
        private const val TENSOR_TYPE = 0
        private const val TENSOR_SIZES = 2
        private const val TENSOR_ORDER = 3
        private val NAMES = mapOf(4 to "int64", 6 to "float32")

        /**
         * Check that a file can be a `.pte` of this form and is complete.
         *
         * @throws EngineException The file fails a check; the message says what was found.
         */
        fun check(
            form: ProgramForm,
            file: File,
        ) {
            try {
                FileInputStream(file).use { stream ->
                    val size = stream.channel.size()
                    if (size > MOST_BYTES) {
                        unusable(
                            "program '${form.name}' cannot be used: program refused: it has $size bytes; programs " +
                                "have at most $MOST_BYTES",
                        )
                    }
                    val raw = stream.channel.map(FileChannel.MapMode.READ_ONLY, 0, size)
                    val checked = PteFile(form, raw.order(ByteOrder.LITTLE_ENDIAN))
                    checked.checkLengths()
                    try {
                        checked.checkMethod()
                    } catch (error: IndexOutOfBoundsException) {
                        checked.refuse("it is damaged: ${error.message} leads outside of the bytes")
                    }
                }
            } catch (error: IOException) {
                // The error's own message holds a path, and the server would receive it.
                throw unreadable(form.name, error)
            }
        }

        private fun unsigned(value: Long): String = java.lang.Long.toUnsignedString(value)
    }
}

internal fun unusable(
    message: String,
    cause: Throwable? = null,
): Nothing = throw EngineException(Reason.BUNDLE_UNUSABLE, message, cause)

internal fun badInput(message: String): Nothing = throw EngineException(Reason.BAD_INPUT, message)

/** The failure to read a program, without the path: the server receives it, and a path may contain the owner's name. */
internal fun unreadable(
    program: String,
    cause: IOException,
): EngineException = EngineException(Reason.BUNDLE_UNUSABLE, "program '$program' cannot be read", cause)
