package org.fedlens.app

import android.content.Intent
import android.os.Build
import android.os.Bundle
import android.view.View
import android.widget.Button
import android.widget.TextView
import android.window.OnBackInvokedDispatcher
import org.fedlens.app.Erasing.State

/** Erasing everything, on the phone and on the server. */
class EraseActivity : ScreenActivity() {
    // Erasing must be possible after consent was withdrawn.
    override val needsMembership get() = false

    override val hasBack get() = true

    override fun make(saved: Bundle?) {
        fill(R.layout.erase, R.string.erase_everything)
        // The result of an earlier attempt does not apply to this one.
        if (saved == null) app.erasing.seen()
        addLines(R.id.erased, R.array.what_is_erased)
        findViewById<Button>(R.id.erase).setOnClickListener { app.erasing.start() }
        findViewById<Button>(R.id.erase_anyway).setOnClickListener { app.erasing.startHereAnyway() }
        findViewById<Button>(R.id.keep).setOnClickListener { finish() }
        findViewById<Button>(R.id.start_anew).setOnClickListener { startAnew() }
    }

    override fun follow() {
        whileSeen(app.erasing.state, ::show)
    }

    override fun onDestroy() {
        if (isFinishing) app.erasing.seen()
        super.onDestroy()
    }

    // Up to Android 12; later, the callback below.
    @Deprecated("What stands in its place needs Android 13.")
    @Suppress("DEPRECATION")
    override fun onBackPressed() {
        if (app.erasing.state.value is State.Done) startAnew() else super.onBackPressed()
    }

    /** Going back from an erased app would lead to screens of what is gone. */
    @NewerAndroid(Build.VERSION_CODES.TIRAMISU)
    private fun startAnewOnBack() {
        onBackInvokedDispatcher.registerOnBackInvokedCallback(OnBackInvokedDispatcher.PRIORITY_DEFAULT, ::startAnew)
    }

    private fun show(state: State) {
        if (state is State.Done && Build.VERSION.SDK_INT >= Build.VERSION_CODES.TIRAMISU) startAnewOnBack()
        val (title, text) =
            when (state) {
                State.Idle -> getString(R.string.erase_title) to getString(R.string.erase_text)
                State.TellingServer -> getString(R.string.erasing_title) to getString(R.string.erasing_text)
                is State.NotTold -> getString(R.string.not_told_title) to notTold(state)
                is State.NotErased ->
                    getString(R.string.not_erased_title) to getString(R.string.not_erased_text, state.detail)
                is State.Done -> getString(R.string.erased_title) to getString(erased(state))
            }
        val heading = findViewById<TextView>(R.id.erase_state).apply { this.text = title }
        val why = findViewById<TextView>(R.id.erase_text).apply { this.text = text }
        val hasFailed = state is State.NotTold || state is State.NotErased
        findViewById<View>(R.id.erase_card).showFailure(hasFailed, heading, why)
        findViewById<View>(R.id.erase_progress).isVisible = state is State.TellingServer
        findViewById<View>(R.id.erased_group).isVisible = state !is State.Done
        findViewById<Button>(R.id.erase).setText(if (hasFailed) R.string.try_again else R.string.erase_everything)
        findViewById<View>(R.id.erase).isVisible = state is State.Idle || hasFailed
        findViewById<View>(R.id.erase_anyway).isVisible = state is State.NotTold
        findViewById<View>(R.id.keep).isVisible = state is State.Idle || state is State.NotTold
        findViewById<View>(R.id.start_anew).isVisible = state is State.Done
        findViewById<View>(R.id.back).isVisible = state !is State.Done
    }

    private fun notTold(state: State.NotTold): String {
        val why = state.detail.ifEmpty { getString(R.string.no_answer_in_time) }
        return getString(if (app.network.isThere.value) R.string.not_told_text else R.string.not_told_no_network, why)
    }

    private fun erased(state: State.Done): Int =
        when {
            !state.wasTold -> R.string.erased_here_only
            state.isAggregating -> R.string.erased_but_aggregating
            else -> R.string.erased_text
        }

    private fun startAnew() {
        startActivity(
            Intent(this, EnrolActivity::class.java)
                .addFlags(Intent.FLAG_ACTIVITY_NEW_TASK or Intent.FLAG_ACTIVITY_CLEAR_TASK),
        )
        finish()
    }
}
