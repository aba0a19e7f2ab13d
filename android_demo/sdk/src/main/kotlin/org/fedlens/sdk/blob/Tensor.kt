package org.fedlens.sdk.blob

import org.fedlens.proto.v1.Dtype

/**
 * A tensor whose elements are read in runs, in row-major order, so that it need not fit into the heap.
 *
 * Repeated reads give the same elements.
 */
public sealed interface Tensor {
    /** Dimensions; empty for a scalar, which has one element. */
    public val shape: List<Long>

    /** Number of elements. */
    public val count: Long get() = shape.fold(1L) { found, dimension -> Math.multiplyExact(found, dimension) }
}

/** A tensor of float32, however it is stored. */
public interface FloatTensor : Tensor {
    /**
     * Read the [count] elements that begin with number [from] into [into], the first of them at index [at].
     *
     * @throws IndexOutOfBoundsException The tensor or the array ends before.
     */
    public fun read(
        from: Long,
        into: FloatArray,
        at: Int = 0,
        count: Int = into.size - at,
    )

    /** All elements; of a tensor with more than an array can hold, an [ArithmeticException]. */
    public fun toArray(): FloatArray = FloatArray(Math.toIntExact(count)).also { read(0, it) }

    public companion object {
        /** A tensor over [values], which are not copied. */
        public fun of(
            shape: List<Long>,
            values: FloatArray,
        ): FloatTensor = FloatArrayTensor(shape, values)
    }
}

/** A tensor of int64. */
public interface LongTensor : Tensor {
    /**
     * Read the [count] elements that begin with number [from] into [into], the first of them at index [at].
     *
     * @throws IndexOutOfBoundsException The tensor or the array ends before.
     */
    public fun read(
        from: Long,
        into: LongArray,
        at: Int = 0,
        count: Int = into.size - at,
    )

    /** All elements; of a tensor with more than an array can hold, an [ArithmeticException]. */
    public fun toArray(): LongArray = LongArray(Math.toIntExact(count)).also { read(0, it) }

    public companion object {
        /** A tensor over [values], which are not copied. */
        public fun of(
            shape: List<Long>,
            values: LongArray,
        ): LongTensor = LongArrayTensor(shape, values)
    }
}

/** The form of a tensor in memory, where floats are float32. */
internal fun Tensor.spec(name: String): TensorSpec =
    TensorSpec(name, if (this is LongTensor) Dtype.DTYPE_INT64 else Dtype.DTYPE_FLOAT32, shape)

/** Number of elements that are read, computed and written at a time. */
internal const val RUN_ELEMENTS = 1 shl 13

/** Call [use] with the start and length of each run of the tensor. */
internal inline fun Tensor.forEachRun(use: (from: Long, count: Int) -> Unit) {
    val total = count
    var from = 0L
    while (from < total) {
        val run = minOf(RUN_ELEMENTS.toLong(), total - from).toInt()
        use(from, run)
        from += run
    }
}

internal fun Tensor.requireRun(
    from: Long,
    count: Int,
) {
    if (from < 0 || count < 0 || from > this.count - count) {
        throw IndexOutOfBoundsException("$count elements from number $from of a tensor with ${this.count}")
    }
}

private class FloatArrayTensor(
    override val shape: List<Long>,
    private val values: FloatArray,
) : FloatTensor {
    init {
        require(count == values.size.toLong()) { "${values.size} elements of a tensor $shape" }
    }

    override fun read(
        from: Long,
        into: FloatArray,
        at: Int,
        count: Int,
    ) {
        requireRun(from, count)
        values.copyInto(into, at, from.toInt(), from.toInt() + count)
    }
}

private class LongArrayTensor(
    override val shape: List<Long>,
    private val values: LongArray,
) : LongTensor {
    init {
        require(count == values.size.toLong()) { "${values.size} elements of a tensor $shape" }
    }

    override fun read(
        from: Long,
        into: LongArray,
        at: Int,
        count: Int,
    ) {
        requireRun(from, count)
        values.copyInto(into, at, from.toInt(), from.toInt() + count)
    }
}
