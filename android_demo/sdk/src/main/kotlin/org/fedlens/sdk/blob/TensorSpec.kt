package org.fedlens.sdk.blob

import org.fedlens.proto.v1.Dtype
import org.fedlens.proto.v1.ExchangeableTensor
import org.fedlens.sdk.BlobException
import org.fedlens.sdk.BlobException.Reason

/**
 * Name, stored type and shape of one tensor.
 *
 * @property shape Dimensions; empty for a scalar, which has one element.
 */
@ConsistentCopyVisibility
public data class TensorSpec internal constructor(
    public val name: String,
    internal val dtype: Dtype,
    public val shape: List<Long>,
) {
    /**
     * Number of elements.
     *
     * @throws BlobException The number exceeds 63 bits.
     */
    public val count: Long get() = product(shape)

    /** The stored type for people: `float32`, `float16`, `int8` or `int64`. */
    public val type: String get() = dtype.name.removePrefix("DTYPE_").lowercase()

    /** The elements are whole numbers of 64 bits; if not, floats, or what stands for them in a blob. */
    public val isInteger: Boolean get() = dtype == Dtype.DTYPE_INT64

    /** Elements of a row: what one index of the first dimension selects. */
    internal val rowLength: Long get() = product(shape.drop(1))

    /** Number of scales before the elements. */
    internal val scales: Long get() = if (dtype == Dtype.DTYPE_INT8) shape[0] else 0

    /** Stored size in bytes, without padding. */
    internal val bytes: Long
        get() =
            exactly {
                val elements = Math.multiplyExact(count, elementBytes)
                Math.addExact(elements, Math.multiplyExact(scales, SCALE_BYTES))
            }

    internal val elementBytes: Long
        get() =
            when (dtype) {
                Dtype.DTYPE_FLOAT32 -> 4
                Dtype.DTYPE_FLOAT16 -> 2
                Dtype.DTYPE_INT8 -> 1
                Dtype.DTYPE_INT64 -> 8
                else -> throw BlobException(Reason.TENSOR_NOT_ALLOWED, "tensor '$name' has an unknown type")
            }

    /** Name, type and shape for messages: `fc.weight float32[10, 512]`. */
    override fun toString(): String = "$name $form"

    /** Type and shape for messages: `float32[10, 512]`. */
    internal val form: String get() = "$type$shape"

    private fun product(dimensions: List<Long>): Long =
        exactly { dimensions.fold(1L) { found, dimension -> Math.multiplyExact(found, dimension) } }

    private fun exactly(compute: () -> Long): Long =
        try {
            compute()
        } catch (error: ArithmeticException) {
            throw BlobException(Reason.TOO_LARGE, "tensor '$name' has more bytes than can be counted: $shape", error)
        }

    internal companion object {
        internal const val SCALE_BYTES = 4L

        /**
         * The spec of a float tensor if floats are stored as [floats]; with int8, fewer than two dimensions mean
         * float32.
         */
        internal fun ofFloat(
            name: String,
            shape: List<Long>,
            floats: Dtype,
        ): TensorSpec {
            val hasRows = floats != Dtype.DTYPE_INT8 || shape.size > 1
            return TensorSpec(name, if (hasRows) floats else Dtype.DTYPE_FLOAT32, shape)
        }

        /** The specs of these tensors in a blob whose floats are stored as [floats]. */
        internal fun ofTensors(
            tensors: Iterable<ExchangeableTensor>,
            floats: Dtype = Dtype.DTYPE_FLOAT32,
        ): List<TensorSpec> =
            tensors.map {
                if (it.dtype == Dtype.DTYPE_FLOAT32) {
                    ofFloat(it.name, it.shapeList, floats)
                } else {
                    TensorSpec(it.name, it.dtype, it.shapeList)
                }
            }
    }
}
