package org.fedlens.app

import android.content.Context
import android.graphics.Canvas
import android.graphics.Paint
import android.graphics.Path
import android.util.AttributeSet
import android.util.TypedValue
import android.view.View
import java.text.NumberFormat

/** Accuracy before and after learning, as two lines over 0 to 100 %. */
internal class AccuracyChart(
    context: Context,
    attributes: AttributeSet?,
) : View(context, attributes) {
    /**
     * One measurement; [before] and [after] in 0..1.
     *
     * @property name The day.
     */
    data class Point(
        val name: String,
        val before: Double?,
        val after: Double?,
    )

    private val percent = NumberFormat.getPercentInstance(resources.configuration.locales[0])
    private val line =
        Paint(Paint.ANTI_ALIAS_FLAG).apply {
            style = Paint.Style.STROKE
            strokeWidth = dp(LINE_DP)
            strokeCap = Paint.Cap.ROUND
            strokeJoin = Paint.Join.ROUND
        }
    private val dot = Paint(Paint.ANTI_ALIAS_FLAG)
    private val grid =
        Paint().apply {
            color = context.getColor(R.color.divider)
            strokeWidth = dp(1f)
        }
    private val label =
        Paint(Paint.ANTI_ALIAS_FLAG).apply {
            color = context.getColor(R.color.text_soft)
            textSize =
                TypedValue.applyDimension(TypedValue.COMPLEX_UNIT_SP, LABEL_SP, resources.displayMetrics)
        }

    /** From the oldest round to the newest. */
    var points: List<Point> = emptyList()
        set(value) {
            field = value
            contentDescription = described(value)
            invalidate()
        }

    override fun onDraw(canvas: Canvas) {
        super.onDraw(canvas)
        if (points.isEmpty()) return
        val widest = label.measureText(percent.format(1.0))
        val frame = Frame(widest)
        for (step in 0..GRID) {
            val share = step.toDouble() / GRID
            val y = frame.y(share)
            canvas.drawLine(frame.left, y, frame.right, y, grid)
            val text = percent.format(share)
            val x = if (isRtl) frame.right + dp(GAP_DP) else frame.left - dp(GAP_DP) - label.measureText(text)
            canvas.drawText(text, x, y + label.textSize * BASELINE, label)
        }
        drawRounds(canvas, frame)
        drawLine(canvas, frame, R.color.chart_before, isSquare = true) { it.before }
        drawLine(canvas, frame, R.color.chart_after, isSquare = false) { it.after }
    }

    private fun drawRounds(
        canvas: Canvas,
        frame: Frame,
    ) {
        val widest = points.maxOf { label.measureText(it.name) } + dp(GAP_DP) * 2
        val most = ((frame.right - frame.left) / widest).toInt().coerceAtLeast(2)
        val every = (points.size + most - 1) / most
        for ((place, point) in points.withIndex()) {
            // Counted from the newest round, which is always named.
            if ((points.lastIndex - place) % every != 0) continue
            val width = label.measureText(point.name)
            val x = (frame.x(place) - width / 2).coerceAtMost(this.width - width)
            canvas.drawText(point.name, x, height - dp(2f), label)
        }
    }

    private fun drawLine(
        canvas: Canvas,
        frame: Frame,
        colour: Int,
        isSquare: Boolean,
        value: (Point) -> Double?,
    ) {
        val path = Path()
        line.color = context.getColor(colour)
        dot.color = line.color
        var isBroken = true
        val isDotted = points.size <= MOST_DOTS
        for ((place, point) in points.withIndex()) {
            val share = value(point)
            if (share == null) {
                isBroken = true
                continue
            }
            val x = frame.x(place)
            val y = frame.y(share)
            if (isBroken) path.moveTo(x, y) else path.lineTo(x, y)
            isBroken = false
            val r = dp(DOT_DP)
            if (isDotted && isSquare) canvas.drawRect(x - r, y - r, x + r, y + r, dot)
            if (isDotted && !isSquare) canvas.drawCircle(x, y, r, dot)
        }
        canvas.drawPath(path, line)
    }

    private fun described(points: List<Point>): String {
        val last = points.lastOrNull() ?: return ""
        val times = resources.getQuantityString(R.plurals.times, points.size, points.size)
        val none = resources.getString(R.string.not_measured)
        val before = last.before?.let(percent::format) ?: none
        val after = last.after?.let(percent::format) ?: none
        val first = points.first().after?.let(percent::format) ?: none
        return resources.getString(R.string.chart_described, times, first, before, after)
    }

    private val isRtl get() = layoutDirection == LAYOUT_DIRECTION_RTL

    private fun dp(value: Float): Float = value * resources.displayMetrics.density

    /** The area of the lines within the view. */
    private inner class Frame(
        widest: Float,
    ) {
        val left = if (isRtl) dp(DOT_DP) else widest + dp(GAP_DP)
        val right = if (isRtl) width - widest - dp(GAP_DP) else width - dp(DOT_DP)
        private val top = label.textSize * BASELINE + dp(DOT_DP)
        private val bottom = height - label.textSize - dp(GAP_DP * 2)
        private val inset = dp(INSET_DP)

        fun y(share: Double): Float = (bottom - (bottom - top) * share).toFloat()

        fun x(place: Int): Float {
            val share = if (points.size == 1) HALF else place.toFloat() / points.lastIndex
            return left + inset + (right - left - 2 * inset) * (if (isRtl) 1 - share else share)
        }
    }

    private companion object {
        const val GRID = 4
        const val MOST_DOTS = 24
        const val LINE_DP = 2.5f
        const val DOT_DP = 4f
        const val GAP_DP = 6f
        const val INSET_DP = 10f
        const val LABEL_SP = 12f
        const val BASELINE = 0.35f
        const val HALF = 0.5f
    }
}
