package org.fedlens.app

import android.content.ActivityNotFoundException
import android.content.ClipboardManager
import android.content.Intent
import android.net.Uri
import android.os.Bundle
import android.view.View
import android.view.inputmethod.InputMethodManager
import android.widget.Button
import android.widget.EditText
import android.widget.TextView
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.flow.combine
import kotlinx.coroutines.launch
import kotlinx.coroutines.withContext
import org.fedlens.sdk.ClientState
import org.fedlens.sdk.TransportException

/** Joining a group of phones by a link: scanned, typed, pasted, or opened from another app. Consent comes after it. */
class EnrolActivity : ScreenActivity() {
    private lateinit var link: EditText

    override val needsMembership get() = false

    override fun make(saved: Bundle?) {
        fill(R.layout.enrol, R.string.enrol_title)
        link = findViewById(R.id.link)
        if (saved == null) link.setText(intent.dataString.orEmpty())
        link.addTextChangedListener(TextChange(::judge))
        findViewById<Button>(R.id.scan).setOnClickListener { scan() }
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

    override fun follow() {
        val how = combine(app.joining.state, app.fedlens.client.state, app.network.isThere, ::Triple)
        whileSeen(how) { (joining, client, hasNetwork) -> show(joining, client, hasNetwork) }
    }

    private fun paste() {
        val clipboard = getSystemService(ClipboardManager::class.java)
        val pasted = clipboard.primaryClip?.takeIf { it.itemCount > 0 }?.getItemAt(0)?.coerceToText(this)
        link.setText(pasted ?: "")
        link.setSelection(link.text.length)
    }

    private fun join() {
        val given = EnrolmentLink.of(link.text.toString()) ?: return
        getSystemService(InputMethodManager::class.java).hideSoftInputFromWindow(link.windowToken, 0)
        if (app.settings.needsConsent(given)) {
            val invitation = Uri.parse(link.text.toString().trim())
            startActivity(Intent(this, ConsentActivity::class.java).setData(invitation))
        } else {
            app.joining.join(given)
        }
    }

    private fun scan() {
        val asks = CaptureProvider.request()
        try {
            startActivityForResult(asks, SCAN)
        } catch (_: ActivityNotFoundException) {
            say(getString(R.string.scan_no_camera))
        }
    }

    override fun onActivityResult(
        requestCode: Int,
        resultCode: Int,
        data: Intent?,
    ) {
        super.onActivityResult(requestCode, resultCode, data)
        if (requestCode != SCAN || resultCode != RESULT_OK) return
        app.scope.launch {
            val found =
                withContext(Dispatchers.IO) {
                    val picture = CaptureProvider.file(this@EnrolActivity)
                    QrCode.read(picture).also { picture.delete() }
                }
            if (found == null) say(getString(R.string.scan_nothing)) else link.setText(found)
        }
    }

    private fun judge() {
        val reading = EnrolmentLink.read(link.text.toString())
        val isJoined = app.settings.isEnrolled
        val isEmpty = (reading as? EnrolmentLink.Reading.Bad)?.problem == EnrolmentLink.Problem.EMPTY
        say(
            when {
                isJoined -> getString(R.string.joined_already, app.settings.link?.server.orEmpty())
                reading is EnrolmentLink.Reading.Bad && !isEmpty -> explained(reading)
                else -> null
            },
        )
        val good = (reading as? EnrolmentLink.Reading.Good)?.link
        showInvitation(app, good)
        findViewById<View>(R.id.invitation).isVisible = good != null
        findViewById<Button>(R.id.join).apply {
            isEnabled = good != null && !isJoined
            setText(if (good != null && app.settings.needsConsent(good)) R.string.read_on else R.string.join)
        }
    }

    private fun say(problem: String?) {
        findViewById<TextView>(R.id.link_problem).apply {
            text = problem.orEmpty()
            isVisible = problem != null
        }
    }

    private fun explained(bad: EnrolmentLink.Reading.Bad): String {
        val text =
            when (bad.problem) {
                // Said by the screen itself.
                EnrolmentLink.Problem.EMPTY -> R.string.link_explained
                EnrolmentLink.Problem.NOT_A_LINK -> R.string.link_not_a_link
                EnrolmentLink.Problem.OTHER_LINK -> R.string.link_other
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
        for (id in listOf(R.id.scan, R.id.paste)) findViewById<View>(id).isEnabled = !isAsking
        val (said, why) = said(joining, client, hasNetwork)
        val title = findViewById<TextView>(R.id.joining_title).apply { text = said }
        val text = findViewById<TextView>(R.id.joining_text).apply { text = why }
        findViewById<View>(R.id.joining).showFailure(joining is Joining.State.Failed, title, text)
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
        const val SCAN = 1
    }
}
