package org.fedlens.app

import android.view.View
import android.widget.Button
import android.widget.TextView

/** Give this card the look of a failure, or the usual one. */
internal fun View.showFailure(
    isFailure: Boolean,
    title: TextView,
    text: TextView,
) {
    setBackgroundResource(if (isFailure) R.drawable.card_error else R.drawable.card)
    title.setTextColor(context.getColor(if (isFailure) R.color.on_error else R.color.text))
    text.setTextColor(context.getColor(if (isFailure) R.color.on_error else R.color.text_soft))
}

/** Give this button the look of the one thing to do here, or of one among others. */
internal fun Button.emphasise(isPrimary: Boolean) {
    setBackgroundResource(if (isPrimary) R.drawable.button_filled else R.drawable.button_tonal)
    setTextColor(context.getColorStateList(if (isPrimary) R.color.button_filled_text else R.color.on_tonal))
}
