package org.fedlens.app

import android.app.Activity
import android.content.Context
import android.graphics.Canvas
import android.graphics.Paint
import android.text.Layout
import android.text.SpannableString
import android.text.Spanned
import android.text.style.LeadingMarginSpan
import android.view.LayoutInflater
import android.view.ViewGroup
import android.widget.TextView

/** Add one line with a bullet for each text of an array. */
internal fun Activity.addLines(
    group: Int,
    texts: Int,
) {
    findViewById<ViewGroup>(group).addLines(resources.getStringArray(texts).toList())
}

/** Replace the content by one bulleted line for each text. */
internal fun ViewGroup.addLines(texts: List<String>) {
    removeAllViews()
    for (text in texts) {
        val line = LayoutInflater.from(context).inflate(R.layout.line, this, false) as TextView
        val marked = SpannableString(text)
        marked.setSpan(Bullet(context), 0, text.length, Spanned.SPAN_INCLUSIVE_EXCLUSIVE)
        line.text = marked
        addView(line)
    }
}

/** A bullet beside the first row of a paragraph; Android's own has a fixed size up to Android 8. */
private class Bullet(
    context: Context,
) : LeadingMarginSpan {
    private val radius = context.resources.getDimension(R.dimen.bullet)
    private val margin = context.resources.getDimensionPixelSize(R.dimen.bullet_margin)
    private val ink = Paint(Paint.ANTI_ALIAS_FLAG).apply { color = context.getColor(R.color.primary) }

    override fun getLeadingMargin(first: Boolean): Int = margin

    override fun drawLeadingMargin(
        canvas: Canvas,
        paint: Paint,
        x: Int,
        dir: Int,
        top: Int,
        baseline: Int,
        bottom: Int,
        text: CharSequence,
        start: Int,
        end: Int,
        first: Boolean,
        layout: Layout,
    ) {
        if (!first) return
        // At half the height of a small letter, which is about half the text size.
        val y = baseline - paint.textSize * ABOVE_BASELINE
        canvas.drawCircle(x + dir * radius, y, radius, ink)
    }

    private companion object {
        const val ABOVE_BASELINE = 0.28f
    }
}
