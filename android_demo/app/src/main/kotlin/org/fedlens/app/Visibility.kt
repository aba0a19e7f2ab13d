package org.fedlens.app

import android.view.View

/** The visibility of this view: shown, or gone without leaving room. */
internal var View.isVisible: Boolean
    get() = visibility == View.VISIBLE
    set(isShown) {
        visibility = if (isShown) View.VISIBLE else View.GONE
    }
