package org.fedlens.app

import android.app.Activity
import android.content.Intent
import android.content.res.Configuration
import android.graphics.Insets
import android.graphics.Rect
import android.graphics.drawable.BitmapDrawable
import android.view.View
import android.view.ViewGroup
import android.view.WindowInsets
import android.widget.AbsListView
import android.widget.ImageView
import android.widget.ListView
import android.widget.ScrollView
import android.widget.TextView
import kotlinx.coroutines.CoroutineScope
import kotlinx.coroutines.Job
import kotlinx.coroutines.cancel
import org.fedlens.app.Phone.isShown
import org.fedlens.app.Phone.open
import org.fedlens.app.Phone.press
import org.fedlens.app.Phone.text
import org.fedlens.app.Phone.type
import org.fedlens.app.Phone.until
import org.junit.Assert.assertEquals
import org.junit.Assert.assertTrue
import org.junit.Test
import org.junit.runner.RunWith
import org.robolectric.RobolectricTestRunner
import org.robolectric.RuntimeEnvironment
import org.robolectric.android.controller.ActivityController
import org.robolectric.annotation.Config
import org.robolectric.annotation.GraphicsMode

/** Every screen opened, rotated and left; and the rules that all of them follow. */
@RunWith(RobolectricTestRunner::class)
@Config(sdk = [34, 35], application = TestApp::class, qualifiers = "w360dp-h740dp-xhdpi")
@GraphicsMode(GraphicsMode.Mode.NATIVE)
class ScreensTest {
    private val app get() = Phone.app

    @Test
    fun `every screen can be opened, rotated and left`() {
        PlayedServer().use { server ->
            Phone.join(server)
            Phone.addPhoto("cat", 1)
            Phone.addPhoto("emu", 2, label = null)
            for (screen in screens()) {
                val name = screen.get().javaClass.simpleName
                val before = texts(screen.get())
                assertTrue("$name is empty", before.size > 2)
                rotate(screen, "land")
                rotate(screen, "port")
                assertEquals("$name has lost something", before, texts(screen.get()))
                screen.pause().stop().destroy()
                Phone.idle()
            }
        }
    }

    @Test
    fun `rotation keeps what was typed and what was said about it`() {
        app.settings.hasConsent = true
        val screen = open<EnrolActivity>()
        screen.get().type(R.id.link, "https://a.org/join#operator=t")
        screen.get().press(R.id.join)
        val said = screen.get().text(R.id.link_problem)
        rotate(screen, "land")
        assertEquals("https://a.org/join#operator=t", screen.get().text(R.id.link))
        assertEquals(said, screen.get().text(R.id.link_problem))
        assertEquals(app.getString(R.string.link_token_missing), said)
    }

    @Test
    fun `rotation shows each switch as it is set`() {
        PlayedServer().use { server ->
            Phone.join(server)
            Phone.addPhoto("cat", 1)
            app.settings.keepsModelLocal = true
            app.settings.tellsClassCounts = false
            val screen = open<SettingsActivity>()
            rotate(screen, "land")
            val switches = all(screen.get().window.decorView).filterIsInstance<SettingRow>().map { it.isOn }
            val settings =
                app.settings.run {
                    listOf(isPaused, learnsInBackground, onlyWhileCharging, onlyUnmetered, onlyWhileIdle) +
                        listOf(keepsModelLocal, tellsClassCounts, tellsEvaluation)
                }
            assertEquals(settings, switches)
        }
    }

    @Test
    fun `a photo is shown although the screen was left while it was read`() {
        app.settings.hasConsent = true
        Phone.addPhoto("cat", 1, label = null)
        val photo = checkNotNull(app.photos.all.value).single()
        val view = ImageView(app)
        val left = CoroutineScope(Job() + app.main)
        Pictures.show(view, photo, left, ANY_EDGE)
        left.cancel()
        Pictures.show(view, photo, app.scope, ANY_EDGE)
        until("shown") { (view.drawable as? BitmapDrawable)?.bitmap != null }
    }

    @Test
    fun `one photo is erased after a question that outlives a rotation`() {
        PlayedServer().use { server ->
            Phone.join(server)
            Phone.addPhoto("cat", 1)
            Phone.addPhoto("dog", 2)
            val doomed = checkNotNull(app.photos.all.value).first()
            val screen = open<PhotoActivity>(PhotoActivity.intent(app, doomed.id))
            screen.get().press(R.id.erase_photo)
            rotate(screen, "land")
            screen.get().press(R.id.really_erase)
            until("erased") { screen.get().isFinishing }
            assertEquals(listOf("cat"), app.photos.all.value?.map { it.label })
            assertTrue(!doomed.file.exists())
        }
    }

    @Test
    fun `whatever can be pressed is 48 dp high and wide, and screen readers can say what it is`() {
        PlayedServer().use { server ->
            Phone.join(server)
            Phone.addPhoto("cat", 1)
            Phone.addPhoto("emu", 2, label = null)
            for (screen in screens()) {
                val least = (LEAST_DP * app.resources.displayMetrics.density).toInt()
                val pressed = all(screen.get().window.decorView).filter { it.isShown && isButton(it) }
                assertTrue("${screen.get()}", pressed.isNotEmpty())
                for (view in pressed) {
                    val name = "${screen.get().javaClass.simpleName}: $view"
                    assertTrue("$name is ${view.width} x ${view.height}", view.width >= least && view.height >= least)
                    assertTrue("$name says nothing", spoken(view).isNotBlank())
                }
                screen.pause().stop().destroy()
            }
        }
    }

    @Test
    fun `a screen reader goes from top to bottom and from start to end, in either direction and on wide windows`() {
        PlayedServer().use { server ->
            Phone.join(server)
            Phone.addPhoto("cat", 1)
            Phone.addPhoto("emu", 2, label = null)
            for (kind in listOf("en-ldltr-w360dp-h760dp", "ar-ldrtl-w360dp-h760dp", "en-ldltr-w840dp-h600dp")) {
                RuntimeEnvironment.setQualifiers("+$kind")
                for (screen in screens()) {
                    val stops = stops(screen.get().window.decorView)
                    assertTrue("${screen.get()}", stops.size > 1)
                    val wrong = stops.zipWithNext().filter { (one, next) -> isBehind(next, one, "rtl" in kind) }
                    val told = wrong.map { (one, next) -> "'${spoken(next)}' after '${spoken(one)}'" }
                    assertEquals("$kind ${screen.get().javaClass.simpleName}", emptyList<String>(), told)
                    screen.pause().stop().destroy()
                }
            }
        }
    }

    /** What a screen reader stops at, in its order: controls as a whole, and texts. */
    private fun stops(view: View): List<View> {
        if (view.isClickable || (view is TextView && view.text.isNotEmpty())) return listOf(view)
        val children = ArrayList<View>().also(view::addChildrenForAccessibility)
        val inside = children.filter { it.isShown }.flatMap(::stops)
        return inside.ifEmpty { listOf(view).filter { !it.contentDescription.isNullOrEmpty() } }
    }

    private fun place(view: View) =
        IntArray(2).also(view::getLocationInWindow).let { (x, y) -> Rect(x, y, x + view.width, y + view.height) }

    /** The scrolling view that a view is in; null: none. */
    private fun scroller(view: View): View? =
        generateSequence(view.parent as? View) { it.parent as? View }.find { it is ScrollView || it is AbsListView }

    /** Where a view is; what is scrolled out of sight counts as at the edge behind which it is. */
    private fun placeInSight(view: View): Rect {
        val found = place(view)
        val sight = scroller(view)?.let(::place) ?: return found

        fun inSight(y: Int) = y.coerceIn(sight.top, sight.bottom)
        return Rect(found.left, inSight(found.top), found.right, inSight(found.bottom))
    }

    /** True if [nextOne] should come before [first]: it stands above it, or beside it nearer to the start. */
    private fun isBehind(
        nextOne: View,
        first: View,
        isMirrored: Boolean,
    ): Boolean {
        val isOneScroll = scroller(nextOne) === scroller(first)
        val (next, one) = listOf(nextOne, first).map { if (isOneScroll) place(it) else placeInSight(it) }
        val isNearer = if (isMirrored) next.left >= one.right else next.right <= one.left
        val isFarther = if (isMirrored) next.right <= one.left else next.left >= one.right
        // A column beside another one begins above the other's end.
        val isAbove = next.bottom <= one.top && !isFarther
        val isBeside = next.bottom > one.top && next.top < one.bottom
        return isAbove || (isBeside && isNearer)
    }

    @Test
    fun `no text is cut off at twice the size, in either language`() {
        PlayedServer().use { server ->
            Phone.join(server)
            Phone.addPhoto("cat", 1)
            Phone.addPhoto("emu", 2, label = null)
            RuntimeEnvironment.setFontScale(2f)
            for (language in listOf("en", "de")) {
                RuntimeEnvironment.setQualifiers("+$language")
                for (screen in screens()) {
                    val cut = all(screen.get().window.decorView).filterIsInstance<TextView>().filter { isCut(it) }
                    assertEquals("$language ${screen.get()}", emptyList<String>(), cut.map { it.text.toString() })
                    screen.pause().stop().destroy()
                }
            }
        }
    }

    @Test
    fun `from right to left everything is mirrored and nothing is lost`() {
        PlayedServer().use { server ->
            Phone.join(server)
            Phone.addPhoto("cat", 1)
            val usual = open<CollectActivity>().get()
            val place = left(usual.findViewById(R.id.open_settings))
            RuntimeEnvironment.setQualifiers("+ar-ldrtl")
            val mirrored = open<CollectActivity>().get()
            assertEquals(View.LAYOUT_DIRECTION_RTL, mirrored.window.decorView.layoutDirection)
            assertTrue(place > usual.window.decorView.width / 2)
            assertTrue(left(mirrored.findViewById(R.id.open_settings)) < place / 2)
        }
    }

    @Test
    fun `bars of the system and the keyboard cover nothing`() {
        PlayedServer().use { server ->
            Phone.join(server)
            val bars = WindowInsets.Type.systemBars() to Insets.of(0, 24, 0, 48)
            val keyboard = WindowInsets.Type.ime() to Insets.of(0, 0, 0, 300)
            // The ground of the bar at the bottom reaches to the edge, its buttons do not.
            assertEquals(listOf(Insets.of(0, 24, 0, 0), 48), room(open<CollectActivity>().get(), bars))
            app.settings.isEnrolled = false
            assertEquals(listOf(Insets.of(0, 24, 0, 300), 0), room(open<EnrolActivity>().get(), bars, keyboard))
        }
    }

    /** The padding of the frame, and of the tabs below their buttons. */
    private fun room(
        screen: Activity,
        vararg covered: Pair<Int, Insets>,
    ): List<Any> {
        val insets = WindowInsets.Builder()
        for ((kind, edges) in covered) insets.setInsets(kind, edges)
        val frame = screen.findViewById<View>(R.id.frame)
        frame.dispatchApplyWindowInsets(insets.build())
        val edges = frame.run { Insets.of(paddingLeft, paddingTop, paddingRight, paddingBottom) }
        return listOf(edges, screen.findViewById<View>(R.id.tabs).paddingBottom)
    }

    private fun screens(): Sequence<ActivityController<out Activity>> =
        sequence {
            yield(open<ConsentActivity>(keepingConsent()))
            app.settings.hasConsent = true
            yield(open<EnrolActivity>())
            yield(open<CollectActivity>().also { settled(it.get()) })
            yield(open<LabelActivity>().also { settled(it.get()) })
            yield(open<AlbumActivity>().also { settled(it.get()) })
            yield(open<LearningActivity>().also { settled(it.get()) })
            yield(open<SentActivity>().also { settled(it.get()) })
            yield(open<DetailsActivity>(details()).also { settled(it.get()) })
            yield(open<YourModelActivity>().also { settled(it.get()) })
            yield(open<SettingsActivity>().also { settled(it.get()) })
            yield(open<EraseActivity>())
            val photo = checkNotNull(app.photos.all.value).first()
            yield(open<PhotoActivity>(PhotoActivity.intent(app, photo.id)).also { settled(it.get()) })
        }

    private fun details() = DetailsActivity.intent(app, checkNotNull(app.learning.journal.value).first())

    /** The consent screen leads on by itself once consent is given. */
    private fun keepingConsent(): Intent? {
        app.settings.hasConsent = false
        return null
    }

    private fun settled(screen: Activity) {
        until("${screen.javaClass.simpleName} has read what it shows") {
            app.photos.all.value != null &&
                app.suggestions.all.value.values.none { it == Suggestions.Suggestion.Asking } &&
                (screen !is SettingsActivity || screen.isShown(R.id.client_id)) &&
                (screen !is SentActivity || screen.findViewById<ListView>(R.id.uploads).adapter.count > 2) &&
                (screen !is LearningActivity || app.learning.journal.value != null) &&
                (screen !is YourModelActivity || app.learning.models.value != null)
        }
    }

    private fun rotate(
        screen: ActivityController<out Activity>,
        orientation: String,
    ) {
        RuntimeEnvironment.setQualifiers("+$orientation")
        screen.configurationChange(Configuration(app.resources.configuration)).visible()
        Phone.idle()
        if (screen.get() !is ConsentActivity && screen.get() !is EnrolActivity) settled(screen.get())
    }

    private fun texts(screen: Activity): List<String> =
        all(screen.window.decorView).filterIsInstance<TextView>().filter { it.isShown }.map { it.text.toString() }

    private fun all(view: View): List<View> =
        listOf(view) +
            (
                (view as? ViewGroup)
                    ?.let { group ->
                        (0 until group.childCount).flatMap { all(group.getChildAt(it)) }
                    }.orEmpty()
            )

    /** True for a control; selectable text is not one. */
    private fun isButton(view: View) =
        view.isClickable && view.isEnabled && (view as? TextView)?.isTextSelectable != true

    /** The announcement of a screen reader: a description, or the texts within. */
    private fun spoken(view: View): String =
        all(view).joinToString(" ") {
            (
                it.contentDescription
                    ?: (it as? TextView)?.let { text -> text.text.ifEmpty { text.hint ?: "" } }
                    ?: ""
            ).toString()
        }

    private fun isCut(view: TextView): Boolean {
        val lines = view.layout ?: return false
        if (!view.isShown || view.text.isEmpty()) return false
        val isShortened = (0 until lines.lineCount).any { lines.getEllipsisCount(it) > 0 }
        val isTooHigh = lines.height > view.height - view.compoundPaddingTop - view.compoundPaddingBottom + 1
        // A word that does not fit is broken anywhere.
        val isBroken =
            (1 until lines.lineCount).any { line ->
                val at = lines.getLineStart(line)
                view.text[at - 1].isLetterOrDigit() && view.text[at].isLetterOrDigit()
            }
        return isShortened || isTooHigh || (isBroken && !view.isTextSelectable && "://" !in view.text)
    }

    private fun left(view: View): Int = IntArray(2).also { view.getLocationInWindow(it) }[0]

    private companion object {
        const val LEAST_DP = 48
        const val ANY_EDGE = 111
    }
}
