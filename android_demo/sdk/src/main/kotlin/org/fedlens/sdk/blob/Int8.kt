package org.fedlens.sdk.blob

import org.fedlens.sdk.BlobException
import org.fedlens.sdk.BlobException.Reason
import java.io.ByteArrayOutputStream
import kotlin.math.abs

/**
 * The int8 codec: one float32 scale per row and one byte per element; all arithmetic in float32.
 *
 *     scale = m / 127              m: the largest |x| of the row; 0 for a row of zeros
 *     value = round(x / scale)     half to even, within -127 .. 127; 0 where the scale is 0
 *     x'    = value * scale        what a reader gets
 */
internal object Int8 {
    const val MOST = 127

    fun scale(largest: Float): Float = largest / MOST

    fun value(
        element: Float,
        scale: Float,
    ): Byte {
        if (scale == 0f) return 0
        // Divides in float32: a float64 quotient would round ties differently.
        val quotient = element / scale
        val rounded = Math.rint(quotient.toDouble())
        return rounded.coerceIn(-MOST.toDouble(), MOST.toDouble()).toInt().toByte()
    }

    /** True if all elements that this scale can encode are finite. */
    fun isReadable(scale: Float): Boolean = (scale * MOST).isFinite()
}

/** A streaming check that the scales and values of tensor [name] can come from the codec; holds one byte per row. */
internal class Int8Check(
    private val name: String,
    private val rowLength: Long,
) {
    /** The least magnitude of each row's largest value; 0 means exactly 0. Grows with the scales actually read. */
    private val collected = ByteArrayOutputStream()
    private var wanted: ByteArray? = null
    private var row = 0
    private var column = 0L
    private var found = 0

    fun scale(scale: Float) {
        if (!Int8.isReadable(scale)) {
            throw BlobException(Reason.NOT_FINITE, "tensor '$name' has a scale that is a NaN, an infinity or too large")
        }
        if (scale.toRawBits() < 0) throw damaged("has a negative scale")
        collected.write(
            when {
                scale == 0f -> 0
                scale >= SMALLEST_NORMAL -> Int8.MOST
                else -> LEAST_OF_SUBNORMAL
            },
        )
    }

    fun value(value: Byte) {
        val rows = wanted ?: collected.toByteArray().also { wanted = it }
        if (value == Byte.MIN_VALUE) throw damaged("holds -128")
        found = maxOf(found, abs(value.toInt()))
        if (++column == rowLength) {
            val least = rows[row].toInt()
            if (found < least || (least == 0 && found > 0)) {
                throw damaged("has a row whose values are not what its scale gives: row $row")
            }
            row++
            column = 0
            found = 0
        }
    }

    private fun damaged(what: String) = BlobException(Reason.DAMAGED_INT8, "tensor '$name' $what")

    private companion object {
        val SMALLEST_NORMAL = Float.fromBits(1 shl 23)

        // A subnormal scale is off by up to half the least positive number u: m >= 127 scale - 63.5 u and scale >= u,
        // so m / scale >= 63.5, which rounds to 64.
        const val LEAST_OF_SUBNORMAL = 64
    }
}
