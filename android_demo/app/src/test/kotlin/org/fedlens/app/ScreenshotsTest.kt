package org.fedlens.app

import android.app.Activity
import android.content.Intent
import android.view.View
import android.view.ViewGroup
import android.widget.ImageView
import org.fedlens.app.Phone.open
import org.fedlens.app.Phone.press
import org.fedlens.app.Phone.text
import org.fedlens.app.Phone.type
import org.fedlens.app.Phone.until
import org.fedlens.proto.v1.WaitReason
import org.junit.Test
import org.junit.runner.RunWith
import org.robolectric.RobolectricTestRunner
import org.robolectric.RuntimeEnvironment
import org.robolectric.android.controller.ActivityController
import org.robolectric.annotation.Config
import org.robolectric.annotation.GraphicsMode

/**
 * Pictures of every screen in both themes, and of the fullest in German and in twice the text size, written to
 * `target/screens`; with `-Dscreens.kept=../../docs/android` also to where the docs have them.
 */
@RunWith(RobolectricTestRunner::class)
@Config(sdk = [35], application = TestApp::class, qualifiers = "w360dp-h760dp-xhdpi")
@GraphicsMode(GraphicsMode.Mode.NATIVE)
class ScreenshotsTest {
    private val app get() = Phone.app

    @Test
    fun `every screen has its picture`() {
        PlayedServer(rounds = ROUNDS).use { server ->
            shoot(listOf("consent"), everyTheme)
            Phone.join(server)
            for (number in 0 until PHOTOS) {
                val animal = app.settings.classNames[number % app.settings.classNames.size]
                Phone.addPhoto(animal, number, isTest = number % TEST_EVERY == TEST_EVERY - 1)
            }
            repeat(ROUNDS) { learn() }
            Phone.addPhoto("emu", PHOTOS, label = null)
            Phone.addPhoto("dog", PHOTOS + 1, label = null)
            shoot(listOf("enrol", "collect", "photo", "album", "learning", "sent", "settings", "erase"), everyTheme)
            shoot(listOf("collect", "learning", "sent", "settings"), listOf(Look("de", "+de-notnight")))
            shoot(listOf("collect", "album", "learning", "settings"), listOf(Look("large", "+de-notnight", 2f)))
            server.waitReason = WaitReason.WAIT_REASON_NEXT_ROUND
            shoot(listOf("waiting"), everyTheme)
        }
    }

    private class Look(
        val name: String,
        val qualifiers: String,
        val fontScale: Float = 1f,
    )

    private val everyTheme = listOf(Look("light", "+en-notnight"), Look("dark", "+en-night"))

    private fun shoot(
        names: List<String>,
        looks: List<Look>,
    ) {
        for (look in looks) {
            RuntimeEnvironment.setQualifiers(look.qualifiers)
            RuntimeEnvironment.setFontScale(look.fontScale)
            for (name in names) {
                RuntimeEnvironment.setQualifiers("+h${HEIGHTS[name] ?: HEIGHT}dp")
                val screen = screen(name)
                until("the pictures of $name") { images(screen.get().window.decorView).all { it.drawable != null } }
                Phone.photograph(screen.get(), "$name-${look.name}")
                screen.pause().stop().destroy()
                Phone.idle()
            }
        }
    }

    private fun screen(name: String): ActivityController<out Activity> =
        when (name) {
            "consent" -> open<ConsentActivity>()
            "enrol" -> enrol()
            "collect" -> open<CollectActivity>().also { settled() }
            "waiting" -> waiting()
            "photo" -> open<PhotoActivity>(newest()).also { settled() }
            "album" -> open<AlbumActivity>()
            "learning" -> open<LearningActivity>()
            "sent" -> open<SentActivity>()
            "settings" -> settings()
            else -> open<EraseActivity>()
        }

    private fun enrol(): ActivityController<EnrolActivity> {
        app.settings.isEnrolled = false
        val screen = open<EnrolActivity>()
        screen.get().type(R.id.link, "fedlens://enrol?server=http://fl.example.org:8443&token=q1yF0v7cXjN3")
        screen.get().press(R.id.join)
        app.settings.isEnrolled = true
        return screen
    }

    private fun settings(): ActivityController<SettingsActivity> {
        app.settings.learnsInBackground = true
        return open<SettingsActivity>().also { screen ->
            until("the number") { screen.get().findViewById<View>(R.id.client_id).isShown }
        }
    }

    private fun waiting(): ActivityController<CollectActivity> {
        val screen = open<CollectActivity>()
        settled()
        app.learning.start()
        until("waiting") { screen.get().text(R.id.status_title) == screen.get().getString(R.string.waiting_title) }
        return screen
    }

    private fun newest(): Intent = PhotoActivity.intent(app, checkNotNull(app.photos.all.value).first().id)

    private fun settled() =
        until("a suggestion") {
            val all = app.suggestions.all.value.values
            all.isNotEmpty() && all.none { it == Suggestions.Suggestion.Asking }
        }

    private fun learn() {
        var isOver = false
        checkNotNull(app.learning.start()).invokeOnCompletion { isOver = true }
        until("a round") { isOver }
    }

    private fun images(view: View): List<ImageView> =
        when (view) {
            is ImageView -> listOf(view).filter { it.isShown && it.getTag(R.id.photo) != null }
            is ViewGroup -> (0 until view.childCount).flatMap { images(view.getChildAt(it)) }
            else -> emptyList()
        }

    private companion object {
        const val ROUNDS = 7
        const val PHOTOS = 36
        const val TEST_EVERY = 4
        const val HEIGHT = 760

        // Those that scroll, so that a picture shows all of them.
        val HEIGHTS = mapOf("consent" to 1170, "settings" to 1300, "learning" to 900, "sent" to 900, "collect" to 820)
    }
}
