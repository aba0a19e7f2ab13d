package org.fedlens.app

import kotlin.math.pow

/** WCAG 2.2: contrast of two colours, and how much of it is needed. */
internal object Contrast {
    /** Success criterion 1.4.3. */
    const val OF_TEXT = 4.5

    /** Success criterion 1.4.11: parts of controls and of charts. */
    const val OF_SIGNS = 3.0

    /** The contrast ratio, 1 to 21. */
    fun of(
        one: Int,
        other: Int,
    ): Double {
        val (dark, light) = listOf(luminance(one), luminance(other)).sorted()
        return (light + 0.05) / (dark + 0.05)
    }

    private fun luminance(colour: Int): Double {
        val (red, green, blue) =
            listOf(16, 8, 0).map { shift ->
                val share = (colour shr shift and 0xFF) / 255.0
                if (share <= 0.04045) share / 12.92 else ((share + 0.055) / 1.055).pow(2.4)
            }
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue
    }
}
