package org.fedlens.app

import android.content.Context
import android.util.AttributeSet
import android.view.View
import android.widget.LinearLayout

/** Two equal columns, stacked when the font is so large that columns would break words. */
internal class SideBySide(
    context: Context,
    attributes: AttributeSet?,
) : LinearLayout(context, attributes) {
    private val isStacked = resources.configuration.fontScale >= LARGE

    init {
        orientation = if (isStacked) VERTICAL else HORIZONTAL
        isBaselineAligned = false
    }

    override fun onFinishInflate() {
        super.onFinishInflate()
        arrange()
    }

    override fun onMeasure(
        widthMeasureSpec: Int,
        heightMeasureSpec: Int,
    ) {
        arrange()
        super.onMeasure(widthMeasureSpec, heightMeasureSpec)
    }

    private fun arrange() {
        val gap = resources.getDimensionPixelSize(R.dimen.gap_small)
        val shown = (0 until childCount).map(::getChildAt).filter { it.visibility != View.GONE }
        for ((place, child) in shown.withIndex()) {
            val spot = child.layoutParams as LayoutParams
            spot.width = if (isStacked) LayoutParams.MATCH_PARENT else 0
            spot.height = if (isStacked) LayoutParams.WRAP_CONTENT else LayoutParams.MATCH_PARENT
            spot.weight = if (isStacked) 0f else 1f
            spot.marginStart = if (isStacked || place == 0) 0 else gap
            spot.topMargin = if (isStacked && place > 0) gap else 0
        }
    }

    private companion object {
        const val LARGE = 1.3f
    }
}
