package org.fedlens.app

import android.os.Bundle
import android.view.View
import android.widget.ImageView
import android.widget.ListView
import android.widget.TextView
import kotlinx.coroutines.launch

/** Every photo by class, those without one first. */
class AlbumActivity : ScreenActivity() {
    private lateinit var rows: AlbumRows

    override val tab get() = Tab.ALBUM

    override fun make(saved: Bundle?) {
        fill(R.layout.album, R.string.album)
        val columns = (resources.configuration.screenWidthDp / COLUMN_DP).coerceAtLeast(LEAST_COLUMNS)
        rows = AlbumRows(this, app.settings, columns) { startActivity(PhotoActivity.intent(this, it.id)) }
        findViewById<ListView>(R.id.photos).adapter = rows
        findViewById<ImageView>(R.id.nothing_icon).setImageResource(R.drawable.ic_album)
        findViewById<TextView>(R.id.nothing_title).setText(R.string.album_empty_title)
        findViewById<TextView>(R.id.nothing_text).setText(R.string.album_empty_text)
        findViewById<View>(R.id.empty).isVisible = false
    }

    override fun follow() {
        rows.scope = seen
        seen?.launch { app.photos.read() }
        whileSeen(app.photos.all) { photos ->
            findViewById<View>(R.id.empty).isVisible = photos?.isEmpty() == true
            rows.show(photos.orEmpty(), app.settings.classNames)
        }
    }

    private companion object {
        const val COLUMN_DP = 120
        const val LEAST_COLUMNS = 3
    }
}
