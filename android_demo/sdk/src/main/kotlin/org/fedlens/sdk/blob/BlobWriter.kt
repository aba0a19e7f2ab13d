package org.fedlens.sdk.blob

import org.fedlens.proto.v1.Codec
import org.fedlens.proto.v1.Dtype
import org.fedlens.sdk.BlobException
import org.fedlens.sdk.BlobException.Reason
import org.fedlens.sdk.newSha256
import java.io.ByteArrayOutputStream
import java.io.OutputStream
import java.nio.Buffer
import java.nio.ByteBuffer
import java.nio.ByteOrder
import kotlin.math.abs

/** The digest and layout of a written blob. */
internal class WrittenBlob(
    private val sha256: ByteArray,
    val layout: Layout,
) {
    /** SHA-256, 32 bytes, of the blob: its name. */
    val digest: ByteArray get() = sha256.copyOf()

    /** Size of the whole blob in bytes. */
    val size: Long get() = layout.size
}

/** The encoder from named tensors to the bytes of a [Blob]. */
internal object BlobWriter {
    /**
     * Write the blob of these tensors, a few thousand elements at a time; [stream] stays open.
     *
     * A tensor stored as int8 is read twice, and its scales are held in memory: 4 bytes per row.
     *
     * @param tensors Tensors by name, in any order.
     * @param floats Stored type of float tensors: float32, float16 or int8; with int8, tensors of fewer than two
     *     dimensions are float32. Integers are always int64.
     * @param base SHA-256 of the base if the tensors are a delta; null: they are not.
     * @throws BlobException A NaN, an infinity, a number too large for the codec, or a name or shape that is not
     *     allowed. Part of the blob may have been written by then.
     * @throws java.io.IOException Writing to the stream fails.
     */
    fun write(
        stream: OutputStream,
        tensors: Map<String, Tensor>,
        floats: Dtype = Dtype.DTYPE_FLOAT32,
        base: ByteArray? = null,
    ): WrittenBlob {
        val layout = Layout.of(specsOf(tensors, floats), base)
        val output = Output(stream)
        output.put(layout.prefix)
        layout.specs.forEachIndexed { index, spec ->
            output.padTo(layout.offset(index))
            when (val tensor = tensors.getValue(spec.name)) {
                is LongTensor -> output.int64(tensor)
                is FloatTensor -> output.floats(tensor, spec)
            }
        }
        return WrittenBlob(output.finish(), layout)
    }

    /** The blob of these tensors as an array; see [write]. */
    fun encode(
        tensors: Map<String, Tensor>,
        floats: Dtype = Dtype.DTYPE_FLOAT32,
        base: ByteArray? = null,
    ): ByteArray = ByteArrayOutputStream().also { write(it, tensors, floats, base) }.toByteArray()

    /** The stored form of these tensors if floats are stored as [floats]. */
    fun specsOf(
        tensors: Map<String, Tensor>,
        floats: Dtype = Dtype.DTYPE_FLOAT32,
    ): List<TensorSpec> {
        require(floats in FLOATS) { "floats cannot be stored as $floats" }
        return tensors.map { (name, tensor) ->
            when (tensor) {
                is FloatTensor -> TensorSpec.ofFloat(name, tensor.shape, floats)
                is LongTensor -> TensorSpec(name, Dtype.DTYPE_INT64, tensor.shape)
            }
        }
    }

    /** The stored type of float tensors under a codec; null for a codec that this version does not know. */
    fun floatsOf(codec: Codec): Dtype? =
        when (codec) {
            Codec.CODEC_FLOAT32 -> Dtype.DTYPE_FLOAT32
            Codec.CODEC_FLOAT16 -> Dtype.DTYPE_FLOAT16
            Codec.CODEC_INT8 -> Dtype.DTYPE_INT8
            else -> null
        }

    private val FLOATS = setOf(Dtype.DTYPE_FLOAT32, Dtype.DTYPE_FLOAT16, Dtype.DTYPE_INT8)
}

/**
 * A buffer that encodes runs of elements; when it is full, it is hashed and written. Writing a file in whole pages
 * takes half the time.
 */
private class Output(
    private val stream: OutputStream,
) {
    private val hash = newSha256()
    private val bytes = ByteArray(BUFFER_BYTES)
    private val buffer = ByteBuffer.wrap(bytes).order(ByteOrder.LITTLE_ENDIAN)
    private val elements = FloatArray(RUN_ELEMENTS)
    private var passedOn = 0L

    // On Android 8 only Buffer declares this method; a call on a ByteBuffer would not link.
    private var filled: Int
        get() = buffer.position()
        set(position) {
            val plain: Buffer = buffer
            plain.position(position)
        }

    fun put(raw: ByteArray) {
        var from = 0
        while (from < raw.size) {
            val count = minOf(room(1), raw.size - from)
            buffer.put(raw, from, count)
            from += count
        }
    }

    fun padTo(offset: Long) = put(ByteArray((offset - passedOn - filled).toInt()))

    fun finish(): ByteArray {
        passOn()
        return hash.digest()
    }

    fun int64(tensor: LongTensor) {
        val integers = LongArray(RUN_ELEMENTS)
        inRuns(tensor.count, Long.SIZE_BYTES) { from, count ->
            tensor.read(from, integers, 0, count)
            buffer.asLongBuffer().put(integers, 0, count)
        }
    }

    fun floats(
        tensor: FloatTensor,
        spec: TensorSpec,
    ) = when (spec.dtype) {
        Dtype.DTYPE_FLOAT16 -> float16(tensor, spec)
        Dtype.DTYPE_INT8 -> int8(tensor, spec)
        else -> float32(tensor, spec)
    }

    private fun float32(
        tensor: FloatTensor,
        spec: TensorSpec,
    ) = inRuns(tensor.count, Float.SIZE_BYTES) { from, count ->
        read(tensor, spec, from, count)
        buffer.asFloatBuffer().put(elements, 0, count)
    }

    private fun float16(
        tensor: FloatTensor,
        spec: TensorSpec,
    ) = inRuns(tensor.count, Short.SIZE_BYTES) { from, count ->
        read(tensor, spec, from, count)
        val halves = buffer.asShortBuffer()
        for (i in 0 until count) {
            val half = Float16.encode(elements[i])
            if (!Float16.isFinite((half.toInt() shr 8).toByte())) throw notFinite(spec)
            halves.put(half)
        }
    }

    private fun int8(
        tensor: FloatTensor,
        spec: TensorSpec,
    ) {
        val rowLength = spec.rowLength
        val scales = scales(tensor, spec, rowLength)
        inRuns(spec.scales, Float.SIZE_BYTES) { from, count ->
            buffer.asFloatBuffer().put(scales, from.toInt(), count)
        }
        inRuns(tensor.count, Byte.SIZE_BYTES) { from, count ->
            tensor.read(from, elements, 0, count)
            val start = filled
            for (i in 0 until count) {
                bytes[start + i] = Int8.value(elements[i], scales[((from + i) / rowLength).toInt()])
            }
        }
    }

    private fun scales(
        tensor: FloatTensor,
        spec: TensorSpec,
        rowLength: Long,
    ): FloatArray {
        val largest = FloatArray(Math.toIntExact(spec.scales))
        tensor.forEachRun { from, count ->
            read(tensor, spec, from, count)
            for (i in 0 until count) {
                val row = ((from + i) / rowLength).toInt()
                largest[row] = maxOf(largest[row], abs(elements[i]))
            }
        }
        for (row in largest.indices) {
            largest[row] = Int8.scale(largest[row])
            if (!Int8.isReadable(largest[row])) {
                throw BlobException(Reason.NOT_FINITE, "tensor '${spec.name}': an element is too large for int8")
            }
        }
        return largest
    }

    private fun read(
        tensor: FloatTensor,
        spec: TensorSpec,
        from: Long,
        count: Int,
    ) {
        tensor.read(from, elements, 0, count)
        for (i in 0 until count) {
            // Kotlin's own isFinite takes almost three times as long.
            if (!java.lang.Float.isFinite(elements[i])) throw notFinite(spec)
        }
    }

    /** Call [encode] for runs that fit into the buffer; it writes [count] elements of [size] bytes at [filled]. */
    private inline fun inRuns(
        total: Long,
        size: Int,
        encode: (from: Long, count: Int) -> Unit,
    ) {
        var from = 0L
        while (from < total) {
            val count = minOf(room(size), RUN_ELEMENTS, (total - from).coerceAtMost(Int.MAX_VALUE.toLong()).toInt())
            encode(from, count)
            filled += size * count
            from += count
        }
    }

    /**
     * The number of elements of [size] bytes that fit now, at least one: every tensor's offset is a multiple of the
     * element size.
     */
    private fun room(size: Int): Int {
        if (filled == BUFFER_BYTES) passOn()
        return (BUFFER_BYTES - filled) / size
    }

    private fun passOn() {
        hash.update(bytes, 0, filled)
        stream.write(bytes, 0, filled)
        passedOn += filled
        filled = 0
    }

    private fun notFinite(spec: TensorSpec): BlobException {
        val message = "tensor '${spec.name}' holds a NaN, an infinity or a value too large for $spec"
        return BlobException(Reason.NOT_FINITE, message)
    }

    private companion object {
        const val BUFFER_BYTES = 1 shl 16
    }
}
