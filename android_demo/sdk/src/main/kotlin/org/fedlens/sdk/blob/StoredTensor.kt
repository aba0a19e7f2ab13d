package org.fedlens.sdk.blob

import org.fedlens.proto.v1.Dtype
import java.nio.Buffer
import java.nio.ByteBuffer
import java.nio.ByteOrder

/** Tensor [spec], whose data begin at [offset] of the blob in [buffer]. */
internal fun storedTensor(
    buffer: ByteBuffer,
    spec: TensorSpec,
    offset: Int,
): Tensor =
    when (spec.dtype) {
        Dtype.DTYPE_FLOAT32 -> StoredFloat32(buffer, spec, offset)
        Dtype.DTYPE_FLOAT16 -> StoredFloat16(buffer, spec, offset)
        Dtype.DTYPE_INT8 -> StoredInt8(buffer, spec, offset)
        else -> StoredInt64(buffer, spec, offset)
    }

/** A view of [bytes] bytes from [from] on, with its own position, so that threads do not interfere. */
internal fun ByteBuffer.run(
    from: Int,
    bytes: Int,
): ByteBuffer {
    val view = duplicate().order(ByteOrder.LITTLE_ENDIAN)
    view.limitTo(from, bytes)
    return view
}

// On Android 8 only Buffer declares these methods; calls on a ByteBuffer would not link.
private fun Buffer.limitTo(
    from: Int,
    bytes: Int,
) {
    limit(from + bytes)
    position(from)
}

private class StoredFloat32(
    private val buffer: ByteBuffer,
    private val spec: TensorSpec,
    private val offset: Int,
) : FloatTensor {
    override val shape get() = spec.shape

    override fun read(
        from: Long,
        into: FloatArray,
        at: Int,
        count: Int,
    ) {
        requireRun(from, count)
        buffer.run(offset + 4 * from.toInt(), 4 * count).asFloatBuffer().get(into, at, count)
    }
}

private class StoredFloat16(
    private val buffer: ByteBuffer,
    private val spec: TensorSpec,
    private val offset: Int,
) : FloatTensor {
    override val shape get() = spec.shape

    override fun read(
        from: Long,
        into: FloatArray,
        at: Int,
        count: Int,
    ) {
        requireRun(from, count)
        val halves = buffer.run(offset + 2 * from.toInt(), 2 * count)
        for (i in 0 until count) into[at + i] = Float16.decode(halves.getShort())
    }
}

private class StoredInt8(
    private val buffer: ByteBuffer,
    private val spec: TensorSpec,
    private val offset: Int,
) : FloatTensor {
    private val rowLength = spec.rowLength
    private val values = offset + (TensorSpec.SCALE_BYTES * spec.scales).toInt()

    override val shape get() = spec.shape

    override fun read(
        from: Long,
        into: FloatArray,
        at: Int,
        count: Int,
    ) {
        requireRun(from, count)
        if (count == 0) return
        val bytes = buffer.run(values + from.toInt(), count)
        val first = from / rowLength
        val last = (from + count - 1) / rowLength
        val scaleBytes = TensorSpec.SCALE_BYTES.toInt()
        val rows = (last - first + 1).toInt()
        val scales = buffer.run(offset + scaleBytes * first.toInt(), scaleBytes * rows).asFloatBuffer()
        var left = rowLength - from % rowLength
        var scale = scales.get()
        for (i in 0 until count) {
            if (left == 0L) {
                scale = scales.get()
                left = rowLength
            }
            into[at + i] = bytes.get() * scale
            left--
        }
    }
}

private class StoredInt64(
    private val buffer: ByteBuffer,
    private val spec: TensorSpec,
    private val offset: Int,
) : LongTensor {
    override val shape get() = spec.shape

    override fun read(
        from: Long,
        into: LongArray,
        at: Int,
        count: Int,
    ) {
        requireRun(from, count)
        buffer.run(offset + 8 * from.toInt(), 8 * count).asLongBuffer().get(into, at, count)
    }
}
