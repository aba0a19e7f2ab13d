package org.fedlens.app

import android.Manifest
import android.content.Intent
import android.content.pm.PackageManager
import android.os.Build
import android.os.Bundle
import android.view.View
import android.widget.Button
import android.widget.TextView
import kotlinx.coroutines.launch

/** Settings: when to learn, what may be sent, and how to leave. */
class SettingsActivity : ScreenActivity() {
    override fun make(saved: Bundle?) {
        fill(R.layout.settings, R.string.settings)
        val settings = app.settings
        background()
        row(R.id.paused, R.string.pause, R.string.pause_text, settings.isPaused) {
            settings.isPaused = it
            app.learning.schedule()
        }
        row(R.id.local, R.string.keep_local, R.string.keep_local_text, settings.keepsModelLocal) {
            settings.keepsModelLocal = it
        }
        showAnswers(settings)
        findViewById<TextView>(R.id.server).text = getString(R.string.joined_server, settings.link?.server.orEmpty())
        findViewById<Button>(R.id.withdraw).setOnClickListener { withdraw() }
        findViewById<Button>(R.id.erase_all).setOnClickListener {
            startActivity(Intent(this, EraseActivity::class.java))
        }
        val version = packageManager.getPackageInfo(packageName, 0).versionName
        findViewById<TextView>(R.id.version).text = getString(R.string.version, version)
    }

    override fun follow() {
        seen?.launch { app.learning.readJournal() }
        whileSeen(app.learning.clientId) { id ->
            findViewById<TextView>(R.id.client_id).apply {
                text = getString(R.string.client_id, id.orEmpty())
                isVisible = id != null
            }
        }
    }

    private fun background() {
        val settings = app.settings
        row(R.id.background, R.string.background, R.string.background_text, settings.learnsInBackground) {
            settings.learnsInBackground = it
            showConditions()
            app.learning.schedule()
            if (it) askToNotify()
        }
        row(R.id.charging, R.string.charging, R.string.charging_text, settings.onlyWhileCharging) {
            settings.onlyWhileCharging = it
            app.learning.schedule()
        }
        row(R.id.unmetered, R.string.unmetered, R.string.unmetered_text, settings.onlyUnmetered) {
            settings.onlyUnmetered = it
            app.learning.schedule()
        }
        row(R.id.idle, R.string.idle, R.string.idle_text, settings.onlyWhileIdle) {
            settings.onlyWhileIdle = it
            app.learning.schedule()
        }
        showConditions()
    }

    private fun showConditions() {
        for (id in listOf(R.id.charging, R.id.unmetered, R.id.idle)) {
            findViewById<View>(id).isEnabled = app.settings.learnsInBackground
        }
    }

    private fun askToNotify() {
        if (Build.VERSION.SDK_INT < Build.VERSION_CODES.TIRAMISU) return
        val permission = Manifest.permission.POST_NOTIFICATIONS
        if (checkSelfPermission(permission) != PackageManager.PERMISSION_GRANTED) {
            requestPermissions(arrayOf(permission), 0)
        }
    }

    private fun withdraw() {
        app.settings.withdraw()
        app.learning.schedule()
        startActivity(
            Intent(this, ConsentActivity::class.java)
                .addFlags(Intent.FLAG_ACTIVITY_NEW_TASK or Intent.FLAG_ACTIVITY_CLEAR_TASK),
        )
        finish()
    }
}
