package org.fedlens.app

import android.app.Activity
import android.window.OnBackInvokedCallback
import org.fedlens.app.Phone.isShown
import org.fedlens.app.Phone.next
import org.fedlens.app.Phone.open
import org.fedlens.app.Phone.press
import org.fedlens.app.Phone.until
import org.junit.Assert.assertEquals
import org.junit.Assert.assertNull
import org.junit.Assert.assertTrue
import org.junit.Test
import org.junit.runner.RunWith
import org.robolectric.RobolectricTestRunner
import org.robolectric.annotation.Config
import org.robolectric.util.ReflectionHelpers

/** Back, on the screen for erasing everything. */
@RunWith(RobolectricTestRunner::class)
@Config(sdk = [35], application = TestApp::class)
class EraseBackTest {
    /** As Android does: whoever asked last to be told is told. */
    private fun pressBack(screen: Activity) {
        val actual = ReflectionHelpers.getField<Any>(screen.onBackInvokedDispatcher, "mActualDispatcher")
        ReflectionHelpers.callInstanceMethod<OnBackInvokedCallback>(actual, "getTopCallback").onBackInvoked()
        Phone.idle()
    }

    /** As Android did up to 12. */
    @Suppress("DEPRECATION")
    private fun pressOldBack(screen: Activity) {
        screen.onBackPressed()
        Phone.idle()
    }

    @Test
    fun `before anything is erased it leads back to where one was`() {
        PlayedServer().use { server ->
            Phone.join(server)
            for (press in listOf(::pressBack, ::pressOldBack)) {
                val screen = open<EraseActivity>().get()
                press(screen)
                assertTrue(screen.isFinishing)
                assertNull(screen.next())
            }
            assertTrue(Phone.app.settings.isEnrolled)
        }
    }

    @Test
    fun `when everything is erased it leads to joining, not to screens of what is gone`() {
        for (press in listOf(::pressBack, ::pressOldBack)) {
            PlayedServer().use { server ->
                Phone.join(server)
                val screen = open<EraseActivity>().get()
                screen.press(R.id.erase)
                until("erased") { screen.isShown(R.id.start_anew) }
                press(screen)
                assertEquals(EnrolActivity::class.java, screen.next())
                assertTrue(screen.isFinishing)
            }
        }
    }
}
