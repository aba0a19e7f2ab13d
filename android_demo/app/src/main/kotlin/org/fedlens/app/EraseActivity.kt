package org.fedlens.app

import android.content.Intent
import android.os.Bundle
import android.view.View
import android.widget.Button
import android.widget.TextView
import org.fedlens.app.Erasing.State

/** Erasing everything, here and at the server. */
class EraseActivity : ScreenActivity() {
    // Who has withdrawn consent must be able to erase.
    override val needsMembership get() = false

    override val hasBack get() = true

    override fun make(saved: Bundle?) {
        fill(R.layout.erase, R.string.erase_everything)
        // How an earlier attempt ended says nothing about this one.
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

    @Deprecated("What stands in its place needs Android 13.")
    @Suppress("DEPRECATION")
    override fun onBackPressed() {
        if (app.erasing.state.value is State.Done) startAnew() else super.onBackPressed()
    }

    private fun show(state: State) {
        val (title, text) =
            when (state) {
                State.Idle -> getString(R.string.erase_title) to getString(R.string.erase_text)
                State.TellingServer -> getString(R.string.erasing_title) to getString(R.string.erasing_text)
                is State.NotTold -> getString(R.string.not_told_title) to notTold(state)
                is State.Done -> getString(R.string.erased_title) to getString(erased(state))
            }
        findViewById<TextView>(R.id.erase_state).text = title
        findViewById<TextView>(R.id.erase_text).text = text
        showIf(R.id.erase_progress, state is State.TellingServer)
        showIf(R.id.erased_group, state !is State.Done)
        findViewById<Button>(R.id.erase).setText(
            if (state is State.NotTold) R.string.try_again else R.string.erase_everything,
        )
        showIf(R.id.erase, state is State.Idle || state is State.NotTold)
        showIf(R.id.erase_anyway, state is State.NotTold)
        showIf(R.id.keep, state is State.Idle || state is State.NotTold)
        showIf(R.id.start_anew, state is State.Done)
        showIf(R.id.back, state !is State.Done)
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

    private fun showIf(
        id: Int,
        isShown: Boolean,
    ) {
        findViewById<View>(id).visibility = if (isShown) View.VISIBLE else View.GONE
    }

    private fun startAnew() {
        startActivity(
            Intent(this, ConsentActivity::class.java)
                .addFlags(Intent.FLAG_ACTIVITY_NEW_TASK or Intent.FLAG_ACTIVITY_CLEAR_TASK),
        )
        finish()
    }
}
