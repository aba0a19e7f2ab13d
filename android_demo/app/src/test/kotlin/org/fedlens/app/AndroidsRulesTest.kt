package org.fedlens.app

import android.R.attr
import android.app.Activity
import android.content.Intent
import android.content.pm.ApplicationInfo
import android.content.pm.PackageManager
import android.graphics.Color
import android.net.Uri
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
                EnrolmentLink.read("http://$it/join#token=t") is EnrolmentLink.Reading.Good
            }
        assertEquals(listOf("localhost", "127.0.0.1"), permitted)
        assertEquals(permitted, read)
    }

    @Test
    fun `of all links those to join the server of this build open the app, on its page for joining`() {
        val links =
            listOf(
                "https://fl.example.org/join#token=t",
                "https://fl.example.org/join",
                "https://fl.example.org/",
                "https://fl.example.org/joined#token=t",
                "https://b.example.org/join#token=t",
                "http://fl.example.org/join#token=t",
                "fedlens://enrol?server=https://fl.example.org&token=t",
            )

        val opened =
            links.filter { link ->
                val intent = Intent(Intent.ACTION_VIEW, Uri.parse(link)).addCategory(Intent.CATEGORY_BROWSABLE)
                val found = app.packageManager.queryIntentActivities(intent, PackageManager.MATCH_DEFAULT_ONLY)
                found.any { it.activityInfo.name == EnrolActivity::class.java.name }
            }

        assertEquals(links.take(2), opened)
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
