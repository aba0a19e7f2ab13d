package org.fedlens.app

import android.text.Editable
import android.text.TextWatcher

/** A watcher that calls [changed] after each change of a text. */
internal class TextChange(
    private val changed: () -> Unit,
) : TextWatcher {
    override fun afterTextChanged(text: Editable) = changed()

    override fun beforeTextChanged(
        text: CharSequence,
        start: Int,
        count: Int,
        after: Int,
    ) = Unit

    override fun onTextChanged(
        text: CharSequence,
        start: Int,
        before: Int,
        count: Int,
    ) = Unit
}
