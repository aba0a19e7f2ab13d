package org.fedlens.app

import android.app.Activity
import android.content.Intent
import android.database.sqlite.SQLiteDatabase
import android.graphics.drawable.BitmapDrawable
import android.net.ConnectivityManager
import android.net.Uri
import android.view.View
import android.view.ViewGroup
import android.widget.GridView
import android.widget.ImageView
import android.widget.ListView
import android.widget.ScrollView
import kotlinx.coroutines.launch
import org.fedlens.app.Phone.isShown
import org.fedlens.app.Phone.open
import org.fedlens.app.Phone.press
import org.fedlens.app.Phone.text
import org.fedlens.app.Phone.type
import org.fedlens.app.Phone.until
import org.fedlens.proto.v1.WaitReason
import org.fedlens.sdk.ClientState
import org.fedlens.sdk.store.JournalEntry
import org.junit.Assert.assertTrue
import org.junit.Test
import org.junit.runner.RunWith
import org.robolectric.RobolectricTestRunner
import org.robolectric.RuntimeEnvironment
import org.robolectric.Shadows.shadowOf
import org.robolectric.android.controller.ActivityController
import org.robolectric.annotation.Config
import org.robolectric.annotation.GraphicsMode
import org.robolectric.shadows.ShadowNetwork
import java.io.File
import java.util.concurrent.CountDownLatch
import java.util.concurrent.atomic.AtomicInteger

/**
 * Pictures of every screen in both themes, and of the fullest in German and in twice the text size, written to
 * `target/screens`; with `-Dscreens.kept=../../docs/android` also to where the docs have them.
 */
@RunWith(RobolectricTestRunner::class)
@Config(sdk = [35], application = TestApp::class, qualifiers = "w360dp-h760dp-xhdpi")
@GraphicsMode(GraphicsMode.Mode.NATIVE)
class ScreenshotsTest {
    private val app get() = Phone.app

    // While a picture of it is taken, training stands still.
    private var training = CountDownLatch(0)

    @Test
    fun `every screen has its picture`() {
        PlayedServer(rounds = ROUNDS + everyTheme.size, epochs = EPOCHS).use { server ->
            shoot(listOf("consent", "enrol-good", "enrol-wrong"), everyTheme)
            shoot(listOf("consent"), listOf(german))
            server.refusal = 403 to "token-unknown"
            shoot(listOf("enrol-refused"), everyTheme) { server.link }
            server.refusal = null
            Phone.join(server)
            app.settings.link = app.settings.link?.copy(server = ADDRESS)
            shoot(listOf("empty"), everyTheme)
            for (number in 0 until PHOTOS) {
                val animal = app.settings.classNames[number % app.settings.classNames.size]
                Phone.addPhoto(animal, number, isTest = number % TEST_EVERY == TEST_EVERY - 1)
            }
            repeat(ROUNDS) { learn() }
            spreadOverDays()
            Phone.addPhoto("emu", PHOTOS, label = null)
            Phone.addPhoto("cat", clearest("cat"), label = null)
            shoot(listOf("collect", "label", "photo", "album", "learning", "sent"), everyTheme)
            shoot(listOf("never", "details", "model", "settings", "erase"), everyTheme)
            shoot(listOf("collect", "label", "learning", "model", "sent", "settings"), listOf(german))
            shoot(listOf("collect", "album", "learning", "settings", "collect-below", "settings-below"), listOf(large))
            shoot(listOf("collect", "label", "album", "learning", "settings"), listOf(tablet))
            shoot(listOf("collect", "label"), listOf(landscape))
            shoot(listOf("no-network", "training"), everyTheme)
            server.waitReason = WaitReason.WAIT_REASON_NEXT_ROUND
            shoot(listOf("waiting"), everyTheme)
            server.onRequest = { PlayedServer.Fate.LOST_BEFORE }
            shoot(listOf("not-told"), everyTheme)
            shoot(listOf("erased"), everyTheme.take(1))
        }
    }

    private class Look(
        val name: String,
        val qualifiers: String,
        val fontScale: Float = 1f,
        val height: Int? = null,
    )

    private val everyTheme = listOf(Look("light", "+en-w360dp-notnight"), Look("dark", "+en-w360dp-night"))
    private val german = Look("de", "+de-w360dp-notnight")
    private val large = Look("large", "+de-w360dp-notnight", 2f)
    private val tablet = Look("tablet", "+en-w900dp-notnight", height = TABLET_HEIGHT)
    private val landscape = Look("landscape", "+en-w760dp-notnight", height = LANDSCAPE_HEIGHT)

    private fun shoot(
        names: List<String>,
        looks: List<Look>,
        link: () -> String = { LINK },
    ) {
        for (look in looks) {
            RuntimeEnvironment.setQualifiers(look.qualifiers)
            RuntimeEnvironment.setFontScale(look.fontScale)
            for (name in names) {
                RuntimeEnvironment.setQualifiers("+h${look.height ?: HEIGHTS[name] ?: HEIGHT}dp")
                val screen = screen(name, link())
                until("the pictures of $name") {
                    images(screen.get().window.decorView).all { (it.drawable as? BitmapDrawable)?.bitmap != null }
                }
                Phone.photograph(screen.get(), "$name-${look.name}")
                goOn(name)
                screen.pause().stop().destroy()
                Phone.idle()
            }
        }
    }

    private fun screen(
        name: String,
        link: String,
    ): ActivityController<out Activity> =
        when (name) {
            "consent" -> consent()
            "enrol-good" -> enrol(LINK)
            "enrol-wrong" -> enrol(LINK.replace("https", "http")).also { it.get().press(R.id.join) }
            "enrol-refused" -> refused(link)
            "collect", "empty" -> open<CollectActivity>().also { settled() }
            "collect-below" -> open<CollectActivity>().also { settled() }.scrolled()
            "no-network" -> withoutNetwork()
            "training" -> training()
            "waiting" -> waiting()
            "photo" -> open<PhotoActivity>(newest()).also { settled() }
            "label" -> label()
            "details" -> details()
            "model" -> model()
            "album" -> open<AlbumActivity>()
            "learning" -> open<LearningActivity>()
            "sent" -> open<SentActivity>()
            "never" -> never()
            "settings" -> settings()
            "settings-below" -> settings().scrolled()
            "erase" -> open<EraseActivity>()
            "not-told" -> notTold()
            else -> erased()
        }

    /** Ends what was begun for a picture. */
    private fun goOn(name: String) {
        when (name) {
            "no-network" -> networks().forEach { it.onAvailable(ShadowNetwork.newInstance(1)) }
            "training" -> {
                app.onStep = {}
                training.countDown()
                until("the round is over") { !app.learning.isRunning }
            }
        }
    }

    private fun consent(): ActivityController<ConsentActivity> {
        // The screen leads on by itself once consent is given.
        app.settings.hasConsent = false
        return open<ConsentActivity>(Intent(Intent.ACTION_VIEW, Uri.parse(LINK)))
    }

    private fun enrol(link: String): ActivityController<EnrolActivity> {
        app.settings.hasConsent = true
        val screen = open<EnrolActivity>()
        screen.get().type(R.id.link, link)
        return screen
    }

    private fun refused(link: String): ActivityController<EnrolActivity> {
        val screen = enrol(link)
        screen.get().press(R.id.join)
        until("refused") { app.joining.state.value is Joining.State.Failed && screen.get().isShown(R.id.joining) }
        screen.get().type(R.id.link, LINK)
        return screen
    }

    private fun label(): ActivityController<LabelActivity> {
        val screen = open<LabelActivity>()
        val grid = screen.get().findViewById<GridView>(R.id.photos)
        until("cells") { grid.childCount == 2 }
        grid.getChildAt(0).performClick()
        settled()
        return screen
    }

    private fun model(): ActivityController<YourModelActivity> {
        val screen = open<YourModelActivity>()
        until("what has changed") {
            app.learning.models.value?.run { inUse?.result != null && previous?.result != null } == true
        }
        return screen
    }

    private fun details(): ActivityController<DetailsActivity> {
        val results = checkNotNull(app.learning.journal.value).filterIsInstance<JournalEntry.Upload>()
        val screen = open<DetailsActivity>(DetailsActivity.intent(app, results.first()))
        until("details") { screen.get().isShown(R.id.upload_round) }
        return screen
    }

    private fun settings(): ActivityController<SettingsActivity> {
        app.settings.learnsInBackground = true
        return open<SettingsActivity>().also { screen ->
            until("the number") { screen.get().isShown(R.id.client_id) }
        }
    }

    private fun withoutNetwork(): ActivityController<CollectActivity> {
        networks().forEach { it.onLost(ShadowNetwork.newInstance(1)) }
        val screen = open<CollectActivity>()
        settled()
        untilTitle(screen.get(), app.getString(R.string.no_network_title))
        return screen
    }

    private fun networks() = shadowOf(app.getSystemService(ConnectivityManager::class.java)).networkCallbacks.toList()

    private fun training(): ActivityController<LearningActivity> {
        training = CountDownLatch(1)
        val steps = AtomicInteger()
        // Steps in quick succession are not all told of.
        app.onStep = { if (steps.getAndIncrement() == STEPS) training.await() else Thread.sleep(STEP_MS) }
        val screen = open<LearningActivity>()
        app.learning.start()
        until("step $STEPS") { (app.fedlens.status.value.state as? ClientState.Training)?.step == STEPS.toLong() }
        until("its number") { "$STEPS" in screen.get().text(R.id.status_text) }
        return screen
    }

    private fun waiting(): ActivityController<CollectActivity> {
        val screen = open<CollectActivity>()
        settled()
        app.learning.start()
        untilTitle(screen.get(), screen.get().getString(R.string.waiting_title))
        return screen
    }

    private fun untilTitle(
        screen: Activity,
        title: String,
    ) = until(title) { screen.text(R.id.status_title) == title }

    private fun never(): ActivityController<SentActivity> {
        val screen = open<SentActivity>()
        val list = screen.get().findViewById<ListView>(R.id.uploads)
        until("what was sent") { list.adapter.count > ROUNDS }
        list.setSelection(list.adapter.count - 1)
        until("the end of the list") { list.lastVisiblePosition == list.adapter.count - 1 }
        return screen
    }

    private fun notTold(): ActivityController<EraseActivity> {
        val screen = open<EraseActivity>()
        screen.get().press(R.id.erase)
        until("not told") { screen.get().isShown(R.id.erase_anyway) }
        return screen
    }

    private fun erased(): ActivityController<EraseActivity> {
        val screen = notTold()
        screen.get().press(R.id.erase_anyway)
        until("erased") { screen.get().isShown(R.id.start_anew) }
        return screen
    }

    private fun <A : Activity> ActivityController<A>.scrolled(): ActivityController<A> {
        get().findViewById<ScrollView>(R.id.scroll).run { scrollTo(0, getChildAt(0).height) }
        return this
    }

    private fun newest(): Intent = PhotoActivity.intent(app, checkNotNull(app.photos.all.value).first().id)

    private fun settled() =
        until("a suggestion") {
            val waiting = app.photos.all.value?.firstOrNull { it.label == null }
            val suggestion = waiting?.let { app.suggestions.all.value[it.id] }
            app.photos.all.value != null && (waiting == null || suggestion is Suggestions.Suggestion.Made)
        }

    private fun learn() {
        assertTrue(app.learning.start())
        until("a round") { !app.learning.isRunning }
    }

    /** Number of the photo that the model most surely takes for this animal. */
    private fun clearest(animal: String): Int {
        var clearest: Int? = null
        app.scope.launch {
            val numbers = PHOTOS + 1 until PHOTOS + CANDIDATES
            clearest =
                numbers.maxByOrNull { number ->
                    val file = File(Drawn.address(animal, number).path.orEmpty())
                    app.fedlens.client.predict(file).getValue(animal)
                }
        }
        until("the clearest $animal") { clearest != null }
        return checkNotNull(clearest)
    }

    /** Rounds of a test follow within a second; those of a phone do not. */
    private fun spreadOverDays() {
        val file = File(app.clientFolder, "client.sqlite3").path
        SQLiteDatabase.openDatabase(file, null, SQLiteDatabase.OPEN_READWRITE).use {
            it.execSQL("UPDATE journal SET time_ms = time_ms - ((SELECT MAX(id) FROM journal) - id) * $APART_MS")
        }
    }

    private fun images(view: View): List<ImageView> =
        when (view) {
            is ImageView -> listOf(view).filter { it.isShown && it.getTag(R.id.photo) != null }
            is ViewGroup -> (0 until view.childCount).flatMap { images(view.getChildAt(it)) }
            else -> emptyList()
        }

    private companion object {
        const val ADDRESS = "https://fl.example.org"
        const val PURPOSE = "To%20tell%20animals%20apart%20in%20photos."
        const val LINK = "$ADDRESS/join#token=q1yF0v7cXjN3&operator=Zoo%20Heidelberg&purpose=$PURPOSE"
        const val ROUNDS = 7
        const val EPOCHS = 2
        const val STEPS = 6
        const val STEP_MS = 300L
        const val PHOTOS = 48

        // No multiple of the number of classes: some photos of each are kept aside.
        const val TEST_EVERY = 4
        const val CANDIDATES = 12
        const val APART_MS = 9_480_000
        const val HEIGHT = 760
        const val TABLET_HEIGHT = 900
        const val LANDSCAPE_HEIGHT = 400

        // Those that scroll, so that a picture shows all of them.
        val HEIGHTS =
            mapOf(
                "consent" to 1640,
                "settings" to 1185,
                "learning" to 960,
                "training" to 1000,
                "sent" to 900,
                "collect" to 900,
                "no-network" to 880,
                "waiting" to 880,
            )
    }
}
