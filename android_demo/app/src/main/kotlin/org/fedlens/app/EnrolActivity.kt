package org.fedlens.app

import android.content.ClipboardManager
import android.content.Intent
import android.os.Bundle
import android.text.Editable
import android.text.TextWatcher
import android.view.View
import android.view.inputmethod.InputMethodManager
import android.widget.Button
import android.widget.EditText
import android.widget.TextView
import kotlinx.coroutines.flow.combine
import org.fedlens.sdk.ClientState
import org.fedlens.sdk.TransportException

/** Joining a federation by a link: typed, pasted, or opened from another app. */
class EnrolActivity : ScreenActivity() {
    private lateinit var link: EditText

    // True once Join was pressed: from then on problems are shown while the user types.
    private var isJudged = false

    override val needsMembership get() = false

    override fun make(saved: Bundle?) {
        if (!app.settings.hasConsent) {
            startActivity(Intent(this, ConsentActivity::class.java).setData(intent.data))
            finish()
            return
        }
        fill(R.layout.enrol, R.string.enrol_title)
        link = findViewById(R.id.link)
        isJudged = saved?.getBoolean(JUDGED) ?: false
        if (saved == null) link.setText(intent.dataString.orEmpty())
        link.addTextChangedListener(
            object : TextWatcher {
                override fun afterTextChanged(text: Editable) = judge()

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
            },
        )
        findViewById<Button>(R.id.paste).setOnClickListener { paste() }
        findViewById<Button>(R.id.join).setOnClickListener { join() }
        findViewById<Button>(R.id.stop_joining).setOnClickListener { app.joining.cancel() }
        judge()
    }

    override fun onNewIntent(intent: Intent) {
        super.onNewIntent(intent)
        setIntent(intent)
        if (::link.isInitialized) link.setText(intent.dataString.orEmpty())
    }

    override fun onSaveInstanceState(state: Bundle) {
        super.onSaveInstanceState(state)
        state.putBoolean(JUDGED, isJudged)
    }

    override fun follow() {
        val how = combine(app.joining.state, app.learning.state, app.network.isThere, ::Triple)
        whileSeen(how) { (joining, client, hasNetwork) -> show(joining, client, hasNetwork) }
    }

    private fun paste() {
        val clipboard = getSystemService(ClipboardManager::class.java)
        val pasted = clipboard.primaryClip?.takeIf { it.itemCount > 0 }?.getItemAt(0)?.coerceToText(this)
        isJudged = true
        link.setText(pasted ?: "")
        link.setSelection(link.text.length)
    }

    private fun join() {
        isJudged = true
        judge()
        val reading = EnrolmentLink.read(link.text.toString())
        if (reading !is EnrolmentLink.Reading.Good || app.settings.isEnrolled) return
        getSystemService(InputMethodManager::class.java).hideSoftInputFromWindow(link.windowToken, 0)
        app.joining.join(reading.link)
    }

    private fun judge() {
        val reading = EnrolmentLink.read(link.text.toString())
        val problem = findViewById<TextView>(R.id.link_problem)
        val server = findViewById<TextView>(R.id.link_server)
        val said =
            when {
                app.settings.isEnrolled -> getString(R.string.joined_already, app.settings.link?.server.orEmpty())
                reading is EnrolmentLink.Reading.Bad && isJudged -> explained(reading)
                else -> null
            }
        problem.text = said
        problem.isVisible = said != null
        val good = (reading as? EnrolmentLink.Reading.Good)?.link
        val trust = findViewById<TextView>(R.id.link_trust)
        server.isVisible = good != null
        trust.isVisible = good != null
        if (good != null) {
            val text =
                when {
                    good.pins.isNotEmpty() -> R.string.link_server_pinned
                    good.ca.isNotEmpty() -> R.string.link_server_own_ca
                    else -> R.string.link_server
                }
            server.text = getString(text, good.server)
            trust.text = trusted(good)
        }
        findViewById<View>(R.id.join).isEnabled = !app.settings.isEnrolled
    }

    private fun trusted(link: EnrolmentLink): String =
        when {
            link.publishers.isEmpty() -> getString(R.string.link_trusts_server)
            app.publishersFromLink -> getString(R.string.link_trusts_maker)
            else -> getString(R.string.link_key_ignored) + " " + getString(R.string.link_trusts_server)
        }

    private fun explained(bad: EnrolmentLink.Reading.Bad): String {
        val text =
            when (bad.problem) {
                EnrolmentLink.Problem.EMPTY -> R.string.link_empty
                EnrolmentLink.Problem.NOT_A_LINK -> R.string.link_not_a_link
                EnrolmentLink.Problem.OTHER_LINK -> R.string.link_other
                EnrolmentLink.Problem.SERVER_MISSING -> R.string.link_server_missing
                EnrolmentLink.Problem.SERVER_UNREADABLE -> R.string.link_server_unreadable
                EnrolmentLink.Problem.SERVER_NOT_SECURE -> R.string.link_server_not_secure
                EnrolmentLink.Problem.SERVER_WITH_MORE -> R.string.link_server_with_more
                EnrolmentLink.Problem.TOKEN_MISSING -> R.string.link_token_missing
                EnrolmentLink.Problem.TOKEN_WITH_SPACES -> R.string.link_token_unreadable
                EnrolmentLink.Problem.PIN_UNREADABLE -> R.string.link_pin_unreadable
                EnrolmentLink.Problem.CA_UNREADABLE -> R.string.link_ca_unreadable
                EnrolmentLink.Problem.PUBLISHER_UNREADABLE -> R.string.link_publisher_unreadable
                EnrolmentLink.Problem.GIVEN_TWICE -> R.string.link_given_twice
            }
        return getString(text, bad.found)
    }

    private fun show(
        joining: Joining.State,
        client: ClientState,
        hasNetwork: Boolean,
    ) {
        if (joining is Joining.State.Joined) {
            app.joining.seen()
            startActivity(Intent(this, CollectActivity::class.java))
            finish()
            return
        }
        val isAsking = joining is Joining.State.Asking
        findViewById<View>(R.id.joining).isVisible = joining !is Joining.State.Idle
        findViewById<View>(R.id.joining_progress).isVisible = isAsking
        findViewById<View>(R.id.stop_joining).isVisible = isAsking
        findViewById<View>(R.id.join).isVisible = !isAsking
        link.isEnabled = !isAsking
        findViewById<View>(R.id.paste).isEnabled = !isAsking
        val (title, text) = said(joining, client, hasNetwork)
        findViewById<TextView>(R.id.joining_title).text = title
        findViewById<TextView>(R.id.joining_text).text = text
    }

    private fun said(
        joining: Joining.State,
        client: ClientState,
        hasNetwork: Boolean,
    ): Pair<String, String> =
        when {
            joining is Joining.State.Asking && !hasNetwork ->
                getString(R.string.no_network_title) to getString(R.string.joining_no_network)
            joining is Joining.State.Asking && client is ClientState.Retrying ->
                getString(R.string.retrying_title) to getString(R.string.retrying_text, client.reason)
            joining is Joining.State.Asking -> getString(R.string.joining_title) to getString(R.string.joining_text)
            joining is Joining.State.Failed -> why(joining)
            else -> "" to ""
        }

    private fun why(failed: Joining.State.Failed): Pair<String, String> {
        val (title, text) =
            when (failed.reason) {
                TransportException.Reason.REFUSED -> R.string.joining_refused_title to R.string.joining_refused_text
                TransportException.Reason.UNREACHABLE -> R.string.retrying_title to R.string.unreachable_text
                TransportException.Reason.UNTRUSTED -> R.string.untrusted_title to R.string.untrusted_text
                TransportException.Reason.BAD_ANSWER -> R.string.bad_answer_title to R.string.bad_answer_text
                // Joining predicts nothing.
                TransportException.Reason.NO_UNMETERED_NETWORK, null ->
                    R.string.failed_title to R.string.joining_failed_text
            }
        return getString(title) to getString(text, failed.detail)
    }

    private companion object {
        const val JUDGED = "judged"
    }
}
