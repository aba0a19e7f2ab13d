package org.fedlens.app

import android.app.Activity
import android.widget.Button
import org.fedlens.app.Phone.isShown
import org.fedlens.app.Phone.open
import org.fedlens.app.Phone.press
import org.fedlens.app.Phone.text
import org.fedlens.app.Phone.until
import org.junit.Assert.assertEquals
import org.junit.Assert.assertFalse
import org.junit.Assert.assertNull
import org.junit.Assert.assertTrue
import org.junit.Test
import org.junit.runner.RunWith
import org.robolectric.RobolectricTestRunner
import org.robolectric.Shadows.shadowOf
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
    fun `a photo that was taken for a full disk is kept, and can be added when there is room`() {
        PlayedServer().use { server ->
            Phone.join(server)
            val screen = open<CollectActivity>().get()
            val take = screen.findViewById<Button>(R.id.take_photo)
            screen.press(R.id.take_photo)
            val asked = shadowOf(screen).nextStartedActivityForResult
            CaptureProvider.file(app).writeBytes(Drawn.photo("cat", 1))
            app.isDiskFull = true
            shadowOf(screen).receiveResult(asked.intent, Activity.RESULT_OK, null)
            until("offered again") { take.text == app.getString(R.string.add_taken) && take.isEnabled }
            assertTrue(CaptureProvider.file(app).exists())

            app.isDiskFull = false
            screen.press(R.id.take_photo)
            until("in the album") { app.photos.all.value?.size == 1 && take.text == app.getString(R.string.take_photo) }
            assertFalse(CaptureProvider.file(app).exists())
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
