package org.fedlens.app

import android.content.Intent
import android.os.Bundle
import android.view.View
import android.widget.Button

/** Consent: what leaves the phone and what never does. The app does nothing before the owner agrees. */
class ConsentActivity : ScreenActivity() {
    override val needsMembership get() = false

    override fun make(saved: Bundle?) {
        fill(R.layout.consent, R.string.consent_title)
        addLines(R.id.leaves, R.array.what_leaves)
        addLines(R.id.never, R.array.what_never_leaves)
        findViewById<View>(R.id.withdrawn).isVisible = app.settings.wasWithdrawn
        findViewById<Button>(R.id.agree).setOnClickListener { agree() }
        findViewById<Button>(R.id.not_now).setOnClickListener { finish() }
        findViewById<Button>(R.id.erase_all).apply {
            isVisible = app.settings.wasWithdrawn
            setOnClickListener { startActivity(Intent(this@ConsentActivity, EraseActivity::class.java)) }
        }
    }

    override fun onStart() {
        super.onStart()
        if (app.settings.hasConsent) goOn()
    }

    private fun agree() {
        app.settings.hasConsent = true
        app.settings.wasWithdrawn = false
        app.schedule.apply()
        goOn()
    }

    /** Open the screen that the user came for: joining, or the photos. */
    private fun goOn() {
        val invitation = intent.data
        val next =
            if (app.settings.isEnrolled && invitation == null) {
                CollectActivity::class.java
            } else {
                EnrolActivity::class.java
            }
        startActivity(Intent(this, next).setData(invitation))
        finish()
    }
}
