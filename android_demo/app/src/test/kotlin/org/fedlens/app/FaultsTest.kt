package org.fedlens.app

import org.fedlens.app.Phone.isShown
import org.fedlens.app.Phone.open
import org.fedlens.app.Phone.press
import org.fedlens.app.Phone.text
import org.fedlens.app.Phone.until
import org.junit.Assert.assertEquals
import org.junit.Assert.assertFalse
import org.junit.Assert.assertNull
import org.junit.Test
import org.junit.runner.RunWith
import org.robolectric.RobolectricTestRunner
import org.robolectric.annotation.Config
import org.robolectric.annotation.GraphicsMode
import java.io.File

/** Faults of a phone: the app reports them and continues. */
@RunWith(RobolectricTestRunner::class)
@Config(sdk = [34, 35], application = TestApp::class)
@GraphicsMode(GraphicsMode.Mode.NATIVE)
class FaultsTest {
    private val app get() = Phone.app

    @Test
    fun `a full disk is said, and what did not succeed can be done again`() {
        PlayedServer().use { server ->
            Phone.join(server)
            Phone.addPhoto("cat", 1, label = null)
            val screen = open<CollectActivity>().get()
            until("a suggestion") { screen.isShown(R.id.confirm) }
            app.isDiskFull = true
            screen.press(R.id.confirm)
            until("said") { screen.isShown(R.id.album_problem) }
            assertEquals(app.getString(R.string.album_problem, "the disk is full"), screen.text(R.id.album_problem))
            assertNull(app.photos.all.value?.single()?.label)

            app.isDiskFull = false
            screen.press(R.id.confirm)
            until("labelled") { app.photos.all.value?.single()?.label != null }
            until("nothing is said any more") { !screen.isShown(R.id.album_problem) }
        }
    }

    @Test
    fun `a damaged album is said on every start and can be erased`() {
        PlayedServer().use { server ->
            Phone.join(server)
            Phone.addPhoto("cat", 1)
        }
        app.startAgain()
        File(app.albumFolder, "album.sqlite3").writeText("no database".repeat(1_000))
        File(app.albumFolder, "album.sqlite3-wal").delete()
        val screen = open<CollectActivity>().get()
        until("said") { screen.isShown(R.id.album_problem) }

        val erase = open<EraseActivity>().get()
        erase.press(R.id.erase)
        until("not told") { erase.isShown(R.id.erase_anyway) }
        erase.press(R.id.erase_anyway)
        until("erased") { erase.text(R.id.erase_state) == app.getString(R.string.erased_title) }
        assertFalse(app.clientFolder.exists() || app.albumFolder.exists() || app.settings.hasConsent)
    }
}
