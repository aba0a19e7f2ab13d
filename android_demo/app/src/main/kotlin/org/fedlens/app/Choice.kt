package org.fedlens.app

import android.view.View
import android.view.accessibility.AccessibilityNodeInfo

/** A delegate that makes screen readers announce a choice and its state, as those of [control]. */
internal class Choice(
    private val isChosen: Boolean,
    private val control: Class<out View>,
) : View.AccessibilityDelegate() {
    // The setter that replaces it in API 36 does not exist on older phones.
    @Suppress("DEPRECATION")
    override fun onInitializeAccessibilityNodeInfo(
        host: View,
        info: AccessibilityNodeInfo,
    ) {
        super.onInitializeAccessibilityNodeInfo(host, info)
        info.className = control.name
        info.isCheckable = true
        info.isChecked = isChosen
    }
}
