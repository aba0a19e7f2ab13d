package org.fedlens.app

import android.content.Intent
import android.os.Bundle
import android.view.View
import android.widget.Button

/** Consent: who asks for it, what leaves the phone and what never does. Nothing is sent before the owner agrees. */
class ConsentActivity : ScreenActivity() {
    override val needsMembership get() = false

    /** The invitation that the owner has followed; else the one by which the phone has joined. */
    private val link: EnrolmentLink?
        get() = intent.dataString.let { if (it == null) app.settings.link else EnrolmentLink.of(it) }

    override fun make(saved: Bundle?) {
        val link = link
        if (link == null && !app.settings.wasWithdrawn) return goOn()
        fill(R.layout.consent, R.string.consent_title)
        showInvitation(app, link)
        addLines(R.id.leaves, R.array.what_leaves)
        addLines(R.id.never, R.array.what_never_leaves)
        showAnswers(app.settings)
        findViewById<View>(R.id.withdrawn).isVisible = app.settings.wasWithdrawn
        findViewById<Button>(R.id.agree).apply {
            setText(if (app.settings.isEnrolled) R.string.agree else R.string.agree_and_join)
            setOnClickListener { agree() }
        }
        findViewById<Button>(R.id.not_now).setOnClickListener { finish() }
        findViewById<Button>(R.id.erase_all).apply {
            isVisible = app.settings.wasWithdrawn
            setOnClickListener { startActivity(Intent(this@ConsentActivity, EraseActivity::class.java)) }
        }
    }

    override fun onStart() {
        super.onStart()
        val needsConsent = link?.let(app.settings::needsConsent) ?: !app.settings.hasConsent
        if (!isFinishing && !needsConsent) goOn()
    }

    private fun agree() {
        val link = link
        app.settings.hasConsent = true
        app.settings.wasWithdrawn = false
        app.settings.consentedTo = link?.server
        app.learning.schedule()
        if (link != null) app.joining.join(link)
        goOn()
    }

    /** Open the screen that the user came for: joining, or the photos. */
    private fun goOn() {
        val next =
            if (app.settings.isEnrolled && intent.data == null) {
                CollectActivity::class.java
            } else {
                EnrolActivity::class.java
            }
        startActivity(Intent(this, next).setData(intent.data).addFlags(Intent.FLAG_ACTIVITY_CLEAR_TOP))
        finish()
    }
}
