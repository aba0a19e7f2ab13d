package org.fedlens.app

import android.content.Intent
import android.os.Bundle
import android.view.View
import android.widget.Button

/** What leaves the phone and what never does; nothing happens before somebody has agreed to it. */
class ConsentActivity : ScreenActivity() {
    override val needsMembership get() = false

    override fun make(saved: Bundle?) {
        fill(R.layout.consent, R.string.consent_title)
        addLines(R.id.leaves, R.array.what_leaves)
        addLines(R.id.never, R.array.what_never_leaves)
        findViewById<View>(R.id.withdrawn).visibility = if (app.settings.wasWithdrawn) View.VISIBLE else View.GONE
        findViewById<Button>(R.id.agree).setOnClickListener { agree() }
        findViewById<Button>(R.id.not_now).setOnClickListener { finish() }
        findViewById<Button>(R.id.erase_all).apply {
            visibility = if (app.settings.wasWithdrawn) View.VISIBLE else View.GONE
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

    /** To what somebody came for: an invitation, or the photos. */
    private fun goOn() {
        val invitation = intent.data
        val next =
            if (app.settings.isEnrolled &&
                invitation == null
            ) {
                CollectActivity::class.java
            } else {
                EnrolActivity::class.java
            }
        startActivity(Intent(this, next).setData(invitation))
        finish()
    }
}
