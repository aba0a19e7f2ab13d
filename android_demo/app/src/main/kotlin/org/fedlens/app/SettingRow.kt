package org.fedlens.app

import android.app.Activity
import android.content.Context
import android.util.AttributeSet
import android.view.Gravity
import android.view.accessibility.AccessibilityNodeInfo
import android.widget.LinearLayout
import android.widget.Switch
import android.widget.TextView

/** A setting with its explanation and a switch; the whole row is one control, for touch and for screen readers. */
internal class SettingRow(
    context: Context,
    attributes: AttributeSet?,
) : LinearLayout(context, attributes) {
    private val switch: Switch

    init {
        orientation = HORIZONTAL
        gravity = Gravity.CENTER_VERTICAL
        isBaselineAligned = false
        isClickable = true
        isFocusable = true
        minimumHeight = resources.getDimensionPixelSize(R.dimen.row)
        val rim = resources.getDimensionPixelSize(R.dimen.gap_small)
        setPaddingRelative(0, rim, 0, rim)
        setBackgroundResource(R.drawable.row_ripple)
        inflate(context, R.layout.setting_row, this)
        switch = findViewById(R.id.row_switch)
    }

    /** The state of the switch. */
    var isOn: Boolean
        get() = switch.isChecked
        set(on) {
            switch.isChecked = on
        }

    /** Show the texts and the current value; [onChange] receives the owner's choice. */
    fun show(
        name: Int,
        text: Int,
        isOn: Boolean,
        onChange: (Boolean) -> Unit,
    ) {
        findViewById<TextView>(R.id.row_name).setText(name)
        findViewById<TextView>(R.id.row_text).setText(text)
        this.isOn = isOn
        setOnClickListener {
            switch.toggle()
            onChange(switch.isChecked)
        }
    }

    override fun setEnabled(enabled: Boolean) {
        super.setEnabled(enabled)
        alpha = if (enabled) 1f else DISABLED
        switch.isEnabled = enabled
    }

    override fun getAccessibilityClassName(): CharSequence = Switch::class.java.name

    override fun onInitializeAccessibilityNodeInfo(info: AccessibilityNodeInfo) {
        super.onInitializeAccessibilityNodeInfo(info)
        info.isCheckable = true
        setChecked(info)
    }

    // The setter that replaces it in API 36 does not exist on older phones.
    @Suppress("DEPRECATION")
    private fun setChecked(info: AccessibilityNodeInfo) {
        info.isChecked = isOn
    }

    private companion object {
        const val DISABLED = 0.5f
    }
}

/** Show one setting in the row of this id. */
internal fun Activity.row(
    id: Int,
    name: Int,
    text: Int,
    isOn: Boolean,
    onChange: (Boolean) -> Unit,
) {
    findViewById<SettingRow>(id).show(name, text, isOn, onChange)
}

/** Show each kind of answer that the owner can allow. */
internal fun Activity.showAnswers(settings: Settings) {
    row(R.id.class_counts, R.string.tell_counts, R.string.tell_counts_text, settings.tellsClassCounts) {
        settings.tellsClassCounts = it
    }
    row(R.id.evaluation, R.string.tell_evaluation, R.string.tell_evaluation_text, settings.tellsEvaluation) {
        settings.tellsEvaluation = it
    }
}
