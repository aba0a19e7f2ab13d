package org.fedlens.app

import android.R.attr
import android.app.Activity
import android.content.pm.ApplicationInfo
import android.graphics.Color
import android.security.net.config.ApplicationConfig
import android.security.net.config.ManifestConfigSource
import org.fedlens.app.Phone.open
import org.junit.Assert.assertEquals
import org.junit.Assert.assertTrue
import org.junit.Test
import org.junit.runner.RunWith
import org.robolectric.RobolectricTestRunner
import org.robolectric.RuntimeEnvironment
import org.robolectric.annotation.Config

/** Android's own interpretation of manifest and themes. */
@RunWith(RobolectricTestRunner::class)
@Config(sdk = [34, 35], application = TestApp::class)
class AndroidsRulesTest {
    private val app get() = Phone.app

    @Test
    fun `plain HTTP is permitted where a link may name it, and nowhere else`() {
        val rules = ApplicationConfig(ManifestConfigSource(app))
        val hosts = listOf("localhost", "127.0.0.1", "fl.example.org", "10.0.2.2", "192.168.0.1")

        val permitted = hosts.filter { rules.isCleartextTrafficPermitted(it) }
        val read =
            hosts.filter {
                EnrolmentLink.read("fedlens://enrol?server=http://$it&token=t") is EnrolmentLink.Reading.Good
            }
        assertEquals(listOf("localhost", "127.0.0.1"), permitted)
        assertEquals(permitted, read)
    }

    @Test
    fun `a debugger can attach to what is built here`() {
        assertTrue(app.applicationInfo.flags and ApplicationInfo.FLAG_DEBUGGABLE != 0)
    }

    // From Android 15 on it is the background that shows there, for which the same is chosen.
    @Suppress("DEPRECATION")
    @Test
    fun `the buttons of the navigation bar are dark on a light bar and light on a dark one`() {
        val bars =
            listOf("notnight", "night").map { theme ->
                RuntimeEnvironment.setQualifiers("+$theme")
                val screen = open<EnrolActivity>().get()
                val hasDarkButtons = attribute(screen, attr.windowLightNavigationBar) != 0
                val isLight = Color.luminance(attribute(screen, attr.navigationBarColor)) > MIDDLE
                isLight to hasDarkButtons
            }

        assertEquals(listOf(true to true, false to false), bars)
    }

    private fun attribute(
        screen: Activity,
        name: Int,
    ): Int = screen.obtainStyledAttributes(intArrayOf(name)).run { getInt(0, 0).also { recycle() } }

    private companion object {
        const val MIDDLE = 0.5f
    }
}
