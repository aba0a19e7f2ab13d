package org.fedlens.app

import android.app.Activity
import android.graphics.Bitmap
import android.view.View
import android.view.ViewGroup
import android.widget.Button
import android.widget.EditText
import android.widget.ProgressBar
import android.widget.Switch
import android.widget.TextView
import org.fedlens.app.Phone.open
import org.fedlens.app.Phone.press
import org.fedlens.app.Phone.type
import org.fedlens.app.Phone.until
import org.junit.Assert.assertEquals
import org.junit.Assert.assertTrue
import org.junit.Test
import org.junit.runner.RunWith
import org.robolectric.ParameterizedRobolectricTestRunner
import org.robolectric.RuntimeEnvironment
import org.robolectric.Shadows.shadowOf
import org.robolectric.android.controller.ActivityController
import org.robolectric.annotation.Config
import org.robolectric.annotation.GraphicsMode

/** Contrast as it is drawn, pixel by pixel, in both themes; and the measures of what is drawn. */
@RunWith(ParameterizedRobolectricTestRunner::class)
@Config(sdk = [35], application = TestApp::class, qualifiers = "w360dp-h2000dp-xhdpi")
@GraphicsMode(GraphicsMode.Mode.NATIVE)
class ContrastTest(
    private val theme: String,
) {
    private val app get() = Phone.app
    private val opened = ArrayList<ActivityController<EnrolActivity>>()
    private val density get() = app.resources.displayMetrics.density

    @Test
    fun `text stands out from what is drawn behind it`() {
        PlayedServer().use { server ->
            RuntimeEnvironment.setQualifiers("+$theme")
            val failed = enrol("http://a.org/join#token=t")
            assertReadable(failed)
            assertReadable(enrol(LINK))
            assertReadable(consent())
            close()
            Phone.join(server)
            Phone.addPhoto("cat", 1)
            Phone.addPhoto("emu", 2, label = null)
            assertReadable(home())
            assertReadable(open<SettingsActivity>().get())
            assertReadable(open<LearningActivity>().get())
            assertReadable(refused())
        }
    }

    @Test
    fun `switches stand out, on and off, and have Material's measures`() {
        RuntimeEnvironment.setQualifiers("+$theme")
        val screen = consent()
        screen.press(R.id.evaluation)
        val picture = Phone.picture(screen)
        val switches = all(screen.window.decorView).filterIsInstance<Switch>()
        assertEquals(listOf(false, true), switches.map { it.isChecked })
        for (switch in switches) {
            val area = area(switch)
            // The track is drawn at the end of the view, in the middle of its height.
            val row = (area.left until area.right).map { picture.getPixel(it, area.middle) }
            val ground = picture.getPixel(area.left - 1, area.middle)
            val drawn = row.indexOfFirst { it != ground }..row.indexOfLast { it != ground }
            assertEquals("width in dp", TRACK_WIDTH_DP, (drawn.last - drawn.first + 1) / density, HALF_A_DP)
            val column = (area.top until area.bottom).map { picture.getPixel(area.left + row.size / 2, it) }
            val high = column.indexOfLast { it != ground } - column.indexOfFirst { it != ground } + 1
            assertEquals("height in dp", TRACK_HEIGHT_DP, high / density, HALF_A_DP)
            assertStandsOut("track of $switch", row[drawn.first + density.toInt()], ground)
            val handle = if (switch.isChecked) drawn.last - HANDLE_DP * density else drawn.first + HANDLE_DP * density
            val track = if (switch.isChecked) drawn.first + HANDLE_DP * density else drawn.last - HANDLE_DP * density
            assertStandsOut("handle of $switch", row[handle.toInt()], row[track.toInt()])
        }
    }

    @Test
    fun `what is done, and what is still to do, stand out in a progress bar`() {
        PlayedServer().use { server ->
            RuntimeEnvironment.setQualifiers("+$theme")
            Phone.join(server)
            Phone.addPhoto("cat", 1)
            val screen = open<LearningActivity>().get()
            until("the card") { app.photos.all.value != null }
            val bar = screen.findViewById<ProgressBar>(R.id.status_progress)
            bar.isVisible = true
            bar.isIndeterminate = false
            bar.progress = bar.max / 2
            val picture = Phone.picture(screen)
            val area = area(bar)
            val ground = picture.getPixel(area.left + area.width / 4, area.top - 2)
            val done = column(picture, area, area.left + area.width / 4)
            val left = column(picture, area, area.left + area.width * 3 / 4)
            assertStandsOut("done", done[done.size / 2], ground)
            assertTrue("to do: ${left.size}", left.any { Contrast.of(it, ground) >= Contrast.OF_SIGNS })
            assertStandsOut("done beside to do", done[done.size / 2], left[left.size / 2])
        }
    }

    @Test
    fun `outlines of buttons and fields stand out from what is around them`() {
        RuntimeEnvironment.setQualifiers("+$theme")
        val enrol = enrol(LINK)
        val consent = consent()
        val field = enrol.findViewById<EditText>(R.id.link)
        val button = consent.findViewById<Button>(R.id.not_now)
        for ((screen, view) in listOf(enrol to field, consent to button)) {
            val picture = Phone.picture(screen)
            val area = area(view)
            val ground = picture.getPixel(area.left - 2, area.middle)
            val rim = (0..(2 * density).toInt()).map { picture.getPixel(area.left + it, area.middle) }
            val best = rim.maxOf { Contrast.of(it, ground) }
            assertTrue("outline of $view: $best", best >= Contrast.OF_SIGNS)
        }
    }

    @Test
    fun `a failure looks neither like a success nor like erasing`() {
        PlayedServer().use { server ->
            RuntimeEnvironment.setQualifiers("+$theme")
            Phone.join(server)
            Phone.addPhoto("cat", 1)
            val good = ground(home(), R.id.status)
            val refused = refused()
            val bad = ground(refused, R.id.status)
            val erase = ground(open<EraseActivity>().get(), R.id.erase_card)
            assertTrue("$good $bad $erase", good != bad && bad != erase)
        }
    }

    @Test
    fun `bars and tabs have Material's measures`() {
        PlayedServer().use { server ->
            RuntimeEnvironment.setQualifiers("+$theme")
            Phone.join(server)
            val screen = home()
            val bar = screen.findViewById<View>(R.id.title).parent as View
            assertEquals(TOP_BAR_DP, bar.height / density, HALF_A_DP)
            val tabs = screen.findViewById<ViewGroup>(R.id.tabs)
            val indicator = tabs.getChildAt(0).findViewById<View>(R.id.tab_icon)
            assertEquals(INDICATOR_DP, listOf(indicator.width / density, indicator.height / density))
            RuntimeEnvironment.setQualifiers("+w840dp-h1200dp")
            val rail = home().findViewById<View>(R.id.tabs)
            assertEquals(RAIL_DP, rail.width / density, HALF_A_DP)
            assertEquals(rail.height, rail.rootView.height)
        }
    }

    private fun ground(
        screen: Activity,
        id: Int,
    ): Int =
        area(screen.findViewById(id)).run {
            Phone.picture(screen).getPixel(left + width / 2, top + (4 * density).toInt())
        }

    private fun enrol(link: String): EnrolActivity {
        val screen = open<EnrolActivity>()
        opened += screen
        return screen.get().also { it.type(R.id.link, link) }
    }

    /** Close screens that would go on to the next one when the phone has joined. */
    private fun close() = opened.forEach { it.pause().stop().destroy() }

    private fun consent(): ConsentActivity {
        val enrol = enrol(LINK)
        enrol.press(R.id.join)
        return open<ConsentActivity>(shadowOf(enrol).nextStartedActivity).get()
    }

    private fun home(): CollectActivity {
        val screen = open<CollectActivity>().get()
        until("settled") {
            app.photos.all.value != null &&
                app.suggestions.all.value.values.none { it == Suggestions.Suggestion.Asking }
        }
        Phone.idle()
        return screen
    }

    /** Home after a round that asked for more than the owner allows. */
    private fun refused(): CollectActivity {
        app.settings.keepsModelLocal = true
        assertTrue(app.learning.start())
        until("given up") { !app.learning.isRunning }
        return home()
    }

    private fun assertReadable(screen: Activity) {
        val picture = Phone.picture(screen)
        val texts = all(screen.window.decorView).filterIsInstance<TextView>()
        val shown =
            texts.filter {
                it.isShown && isOn(it) && it.text.isNotEmpty() && it !is Switch && isInside(it, picture)
            }
        assertTrue("$screen", shown.isNotEmpty())
        for (view in shown) {
            val area = area(view)
            val pixels = IntArray(area.width * area.height)
            picture.getPixels(pixels, 0, area.width, area.left, area.top, area.width, area.height)
            val ground = pixels.toList().groupingBy { it }.eachCount().maxByOrNull { it.value }?.key ?: 0
            val best = pixels.maxOf { Contrast.of(it, ground) }
            assertTrue("${screen.javaClass.simpleName}, '${view.text}': $best", best >= Contrast.OF_TEXT)
        }
    }

    /** True if nothing that holds the view is disabled, of which WCAG asks nothing. */
    private fun isOn(view: View) = generateSequence(view) { it.parent as? View }.all { it.isEnabled }

    private fun isInside(
        view: View,
        picture: Bitmap,
    ) = area(view).run { left >= 0 && top >= 0 && right <= picture.width && bottom <= picture.height }

    private fun assertStandsOut(
        what: String,
        sign: Int,
        ground: Int,
    ) {
        val contrast = Contrast.of(sign, ground)
        assertTrue("$what: $contrast", contrast >= Contrast.OF_SIGNS)
    }

    private fun column(
        picture: Bitmap,
        area: Area,
        x: Int,
    ) = (area.top until area.bottom).map { picture.getPixel(x, it) }

    private fun all(view: View): List<View> =
        listOf(view) +
            (view as? ViewGroup)?.let { (0 until it.childCount).map(it::getChildAt).flatMap(::all) }.orEmpty()

    private fun area(view: View): Area {
        val place = IntArray(2).also { view.getLocationInWindow(it) }
        return Area(place[0], place[1], view.width, view.height)
    }

    private class Area(
        val left: Int,
        val top: Int,
        val width: Int,
        val height: Int,
    ) {
        val right get() = left + width
        val bottom get() = top + height
        val middle get() = top + height / 2
    }

    companion object {
        private const val LINK = "https://fl.example.org/join#token=t&operator=Zoo"
        private const val TRACK_WIDTH_DP = 52f
        private const val TRACK_HEIGHT_DP = 32f
        private const val TOP_BAR_DP = 64f
        private const val RAIL_DP = 80f
        private val INDICATOR_DP = listOf(56f, 32f)
        private const val HANDLE_DP = 16
        private const val HALF_A_DP = 0.5f

        @JvmStatic
        @ParameterizedRobolectricTestRunner.Parameters(name = "{0}")
        fun themes() = listOf(arrayOf("notnight"), arrayOf("night"))
    }
}
