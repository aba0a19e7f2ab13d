package org.fedlens.sdk.blob

import org.fedlens.sdk.BlobException
import org.fedlens.sdk.BlobException.Reason

/**
 * Delta encoding: differences between sets of tensors, and sums that undo them, computed when elements are read.
 *
 *     difference = trained - base       travels, as a blob that names the base blob in its header
 *     sum        = base + difference    is what the other side uses
 *
 * Arithmetic is float32, with overflow to infinity, or int64 modulo 2^64. Both sides hold the same base, decoded from
 * its blob, so rounding errors of a codec do not accumulate over rounds.
 */
public object Differences {
    /**
     * `trained - base` for each tensor of [trained]; [base] may have more tensors.
     *
     * @throws BlobException The base has no such tensor, or another shape or type.
     */
    public fun subtract(
        trained: Map<String, Tensor>,
        base: Map<String, Tensor>,
    ): Map<String, Tensor> = combine(trained, base, { x, y -> x - y }, { x, y -> x - y })

    /**
     * `base + difference` for each tensor of [differences]; [base] may have more tensors.
     *
     * @throws BlobException The base has no such tensor, or another shape or type.
     */
    public fun add(
        base: Map<String, Tensor>,
        differences: Map<String, Tensor>,
    ): Map<String, Tensor> = combine(differences, base, { x, y -> y + x }, { x, y -> y + x })

    private fun combine(
        left: Map<String, Tensor>,
        base: Map<String, Tensor>,
        floats: (Float, Float) -> Float,
        integers: (Long, Long) -> Long,
    ): Map<String, Tensor> =
        left.mapValues { (name, tensor) ->
            val other =
                base[name]
                    ?: throw BlobException(Reason.UNEXPECTED, "the base of a difference has no tensor '$name'")
            when {
                tensor.shape != other.shape -> throw differs(name, "${tensor.shape}, in the base ${other.shape}")
                tensor is FloatTensor && other is FloatTensor -> FloatPair(tensor, other, floats)
                tensor is LongTensor && other is LongTensor -> LongPair(tensor, other, integers)
                else -> throw differs(name, "of another type than in the base")
            }
        }

    private fun differs(
        name: String,
        how: String,
    ) = BlobException(Reason.UNEXPECTED, "tensor '$name' is $how")
}

private class FloatPair(
    private val left: FloatTensor,
    private val right: FloatTensor,
    private val combine: (Float, Float) -> Float,
) : FloatTensor {
    override val shape get() = left.shape

    override fun read(
        from: Long,
        into: FloatArray,
        at: Int,
        count: Int,
    ) {
        left.read(from, into, at, count)
        val other = FloatArray(minOf(count, RUN_ELEMENTS))
        for (first in 0 until count step RUN_ELEMENTS) {
            val run = minOf(RUN_ELEMENTS, count - first)
            right.read(from + first, other, 0, run)
            for (i in 0 until run) into[at + first + i] = combine(into[at + first + i], other[i])
        }
    }
}

private class LongPair(
    private val left: LongTensor,
    private val right: LongTensor,
    private val combine: (Long, Long) -> Long,
) : LongTensor {
    override val shape get() = left.shape

    override fun read(
        from: Long,
        into: LongArray,
        at: Int,
        count: Int,
    ) {
        left.read(from, into, at, count)
        val other = LongArray(minOf(count, RUN_ELEMENTS))
        for (first in 0 until count step RUN_ELEMENTS) {
            val run = minOf(RUN_ELEMENTS, count - first)
            right.read(from + first, other, 0, run)
            for (i in 0 until run) into[at + first + i] = combine(into[at + first + i], other[i])
        }
    }
}
