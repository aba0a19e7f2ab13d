package org.fedlens.sdk.blob

import kotlin.math.abs

/**
 * IEEE 754 half precision: Android has it as `android.util.Half`, the JDK only since Java 20; this code runs on both.
 */
internal object Float16 {
    private const val SIGN = 0x8000
    private const val INFINITY = 0x7c00
    private const val MANTISSA_BITS = 10
    private const val LOST_BITS = 23 - MANTISSA_BITS

    // The exponents of float32 are biased by 127, those of float16 by 15.
    private const val REBIAS = (127 - 15) shl 23
    private const val LEAST_NORMAL = 113 shl 23 // 2^-14 as float32
    private const val BEYOND = 143 shl 23 // 2^16 as float32
    private const val SUBNORMAL_UNIT = 1f / (1 shl 24)

    /** The nearest half, ties to even; infinite from 65520 on. */
    fun encode(value: Float): Short {
        val bits = value.toRawBits()
        val sign = (bits ushr 16) and SIGN
        val size = bits and Int.MAX_VALUE
        val half =
            when {
                size >= BEYOND -> INFINITY
                size < LEAST_NORMAL -> Math.rint(abs(value).toDouble() / SUBNORMAL_UNIT).toInt()
                else -> {
                    val rebiased = size - REBIAS
                    val odd = (rebiased ushr LOST_BITS) and 1
                    (rebiased + (1 shl (LOST_BITS - 1)) - 1 + odd) ushr LOST_BITS
                }
            }
        return (sign or half).toShort()
    }

    /** The exact value of a half. */
    fun decode(half: Short): Float {
        val bits = half.toInt()
        val sign = (bits and SIGN) shl 16
        val size = bits and (SIGN - 1)
        val found =
            when {
                size < 1 shl MANTISSA_BITS -> (size * SUBNORMAL_UNIT).toRawBits()
                size < INFINITY -> (size shl LOST_BITS) + REBIAS
                else -> (size shl LOST_BITS) or (255 shl 23)
            }
        return Float.fromBits(sign or found)
    }

    /** True if the upper byte of a half belongs to a finite number. */
    fun isFinite(upper: Byte): Boolean = (upper.toInt() and (INFINITY shr 8)) != INFINITY shr 8
}
