package org.fedlens.app

import org.fedlens.app.Phone.isShown
import org.fedlens.app.Phone.open
import org.fedlens.app.Phone.press
import org.fedlens.app.Phone.text
import org.fedlens.app.Phone.until
import org.junit.Assert.assertEquals
import org.junit.Assert.assertFalse
import org.junit.Assert.assertTrue
import org.junit.Test
import org.junit.runner.RunWith
import org.robolectric.RobolectricTestRunner
import org.robolectric.annotation.Config
import org.robolectric.annotation.GraphicsMode

/** The page about the model on this phone. */
@RunWith(RobolectricTestRunner::class)
@Config(sdk = [34, 35], application = TestApp::class, qualifiers = "w360dp-h740dp-xhdpi")
@GraphicsMode(GraphicsMode.Mode.NATIVE)
class YourModelTest {
    private val app get() = Phone.app

    @Test
    fun `the page says what the model recognises and how well, and sends nothing`() {
        PlayedServer().use { server ->
            Phone.join(server)
            Phone.addPhoto("cat", 1)
            Phone.addPhoto("dog", 2, isTest = true)
            predictOnce()
            val asked = server.requests.size
            val screen = open<YourModelActivity>().get()
            until("counted") { app.learning.models.value?.inUse?.result?.count == 1 }
            Phone.idle()
            val result = checkNotNull(app.learning.models.value?.inUse?.result)
            assertEquals("cat, dog, emu", screen.text(R.id.recognises))
            assertEquals(app.getString(R.string.right_of, result.correct, 1), screen.text(R.id.how_well))
            assertEquals(app.getString(R.string.nothing_changed), screen.text(R.id.changed))
            assertFalse(screen.isShown(R.id.previous) || screen.isShown(R.id.newer))
            assertEquals(asked, server.requests.size)
        }
    }

    @Test
    fun `after learning the page compares the models, and leads back to the one before`() {
        PlayedServer(rounds = 2).use { server ->
            Phone.join(server)
            Phone.addPhoto("cat", 1)
            Phone.addPhoto("dog", 2, isTest = true)
            predictOnce()
            assertTrue(app.learning.start())
            until("the round") { !app.learning.isRunning }
            predictOnce()
            val screen = open<YourModelActivity>().get()
            until("both are counted") {
                app.learning.models.value?.run { inUse?.result != null && previous?.result != null } == true
            }
            Phone.idle()
            val (before, now) = checkNotNull(app.learning.models.value).run { previous to inUse }
            assertTrue(screen.isShown(R.id.previous))
            assertFalse(screen.text(R.id.changed) == app.getString(R.string.nothing_changed))
            screen.press(R.id.use_previous)
            until("back") { app.learning.models.value?.inUse?.id == before?.id }
            assertTrue(app.learning.models.value?.newer?.id == now?.id)
            until("the newer one is on offer") { screen.isShown(R.id.newer) }
        }
    }

    private fun predictOnce() {
        app.suggestions.forget()
        val photo = checkNotNull(app.photos.all.value).first()
        app.suggestions.ask(photo)
        until("a suggestion") { app.suggestions.all.value[photo.id] is Suggestions.Suggestion.Made }
    }
}
