package org.fedlens.app

import android.database.sqlite.SQLiteDatabase
import android.widget.ProgressBar
import kotlinx.coroutines.CoroutineStart
import kotlinx.coroutines.awaitCancellation
import kotlinx.coroutines.launch
import org.fedlens.app.Phone.open
import org.fedlens.app.Phone.text
import org.fedlens.app.Phone.until
import org.fedlens.app.Suggestions.Suggestion
import org.fedlens.proto.v1.WaitReason
import org.fedlens.sdk.ClientState
import org.fedlens.sdk.StateException
import org.fedlens.sdk.album.PhotoAlbum
import org.junit.Assert.assertEquals
import org.junit.Assert.assertTrue
import org.junit.Test
import org.junit.runner.RunWith
import org.robolectric.RobolectricTestRunner
import org.robolectric.Shadows.shadowOf
import org.robolectric.annotation.Config
import org.robolectric.annotation.GraphicsMode
import java.io.File
import java.util.concurrent.CountDownLatch
import java.util.concurrent.TimeUnit
import java.util.concurrent.atomic.AtomicInteger

/** The app's use of the client, and when it leaves the client alone. */
@RunWith(RobolectricTestRunner::class)
@Config(sdk = [34, 35], application = TestApp::class)
@GraphicsMode(GraphicsMode.Mode.NATIVE)
class LearningTest {
    private val app get() = Phone.app

    @Test
    fun `a photo is asked about once while there is no model, and again when there is one`() {
        PlayedServer().use { server ->
            server.hasModel = false
            server.waitReason = WaitReason.WAIT_REASON_POPULATION
            Phone.join(server)
            Phone.addPhoto("cat", 1, label = null)
            var asked = 0
            app.scope.launch { app.suggestions.all.collect { if (Suggestion.Asking in it.values) asked++ } }
            open<CollectActivity>()
            until("no model") { Suggestion.NoModel in app.suggestions.all.value.values }
            Phone.spend(LONG_ENOUGH_TO_ASK_MS)
            assertEquals(1, asked)

            server.hasModel = true
            app.scope.launch { app.learning.findModel() }
            until("a suggestion") { app.suggestions.all.value.values.single() is Suggestion.Made }
        }
    }

    @Test
    fun `the server hears the app's version`() {
        shadowOf(app.packageManager).getInternalMutablePackageInfo(app.packageName).longVersionCode = 7
        PlayedServer().use { server ->
            Phone.join(server)
            Phone.addPhoto("cat", 1)
            learnOnce()
            assertEquals(setOf(7), server.checkIns.map { it.clientVersion }.toSet())
        }
    }

    @Test
    fun `who waits for the client while consent is withdrawn does not get it`() {
        PlayedServer().use { server ->
            Phone.join(server)
            val failures = ArrayList<Throwable?>()
            app.scope.launch {
                launch(start = CoroutineStart.UNDISPATCHED) { failures += refusal { awaitCancellation() } }
                app.settings.hasConsent = false
                app.learning.schedule()
                failures += refusal { }
            }
            until("refused") { failures.size == 2 }
            assertTrue("$failures", failures.all { it is StateException })
        }
    }

    private suspend fun refusal(use: suspend () -> Unit): Throwable? =
        runCatching { app.learning.withClient { use() } }.exceptionOrNull()

    @Test
    fun `training counts its steps on the screen and in the notification`() {
        PlayedServer(rounds = 2).use { server ->
            Phone.join(server)
            // Batches of four: two steps.
            repeat(5) { Phone.addPhoto("cat", it) }
            learnOnce()
            val isSeen = CountDownLatch(1)
            val steps = AtomicInteger()
            // Progress is told every 100 ms at most.
            app.onStep =
                { if (steps.incrementAndGet() == 2) isSeen.await(1, TimeUnit.MINUTES) else Thread.sleep(PROGRESS_MS) }
            val screen = open<CollectActivity>().get()
            val title = app.getString(R.string.training_title, 2)
            val text = app.getString(R.string.training_text, 1, 2)
            assertTrue(app.learning.start())
            until("the first step") { screen.text(R.id.status_text) == text }
            assertEquals(title, screen.text(R.id.status_title))
            assertEquals(Status.FULL / 2, screen.findViewById<ProgressBar>(R.id.status_progress).progress)
            val notification = shadowOf(LearnNotification.of(app, app.fedlens.status.value.state))
            assertEquals(listOf(title, text), listOf(notification.contentTitle, notification.contentText))
            assertEquals(Status.FULL / 2, notification.progress)
            isSeen.countDown()
            until("the end") { !app.learning.isRunning }
        }
    }

    @Test
    fun `a new photo fetches nothing over a network that rounds must not use`() {
        PlayedServer().use { server ->
            app.hasFreeNetwork = false
            Phone.join(server)
            server.requests.clear()
            Phone.addPhoto("cat", 1)
            Phone.spend(LONG_ENOUGH_TO_ASK_MS)
            assertEquals(emptyList<String>(), server.requests)
            app.settings.onlyUnmetered = false
            Phone.addPhoto("dog", 2)
            until("both are embedded") { features() == 2 }
        }
    }

    @Test
    fun `an erased photo takes with it what was computed of it`() {
        PlayedServer().use { server ->
            Phone.join(server)
            Phone.addPhoto("cat", 1)
            Phone.addPhoto("dog", 2)
            until("both are embedded") { features() == 2 }
            eraseNewest()
            until("one is left") { features() == 1 }

            // While nobody can be told.
            app.end()
            PhotoAlbum.open(app.albumFolder, app.platform).use { album -> album.all().forEach { album.delete(it.id) } }
            assertEquals(1, features())
            app.begin()
            app.scope.launch { app.photos.read() }
            until("none is left") { features() == 0 }
        }
    }

    @Test
    fun `what was computed of a photo that is erased during a training goes when that is over`() {
        PlayedServer(rounds = 2).use { server ->
            Phone.join(server)
            Phone.addPhoto("cat", 1)
            Phone.addPhoto("dog", 2)
            learnOnce()
            val isErased = CountDownLatch(1)
            app.onStep = { isErased.await(1, TimeUnit.MINUTES) }
            assertTrue(app.learning.start())
            until("training") { app.fedlens.status.value.state is ClientState.Training }
            eraseNewest()
            until("erased") { app.photos.all.value?.size == 1 }
            assertEquals(2, features())
            isErased.countDown()
            until("the end") { !app.learning.isRunning }
            until("one is left") { features() == 1 }
        }
    }

    /** A round, before which programs are tried out: afterwards a step is one of a training. */
    private fun learnOnce() {
        assertTrue(app.learning.start())
        until("the first round") { !app.learning.isRunning }
    }

    private fun eraseNewest() {
        val photo = checkNotNull(app.photos.all.value).first()
        app.scope.launch { app.photos.erase(photo.id) }
    }

    /** The number of photos with stored features. */
    private fun features(): Int {
        val file = File(app.clientFolder, "cache/features.sqlite3")
        if (!file.exists()) return 0
        return SQLiteDatabase.openDatabase(file.path, null, SQLiteDatabase.OPEN_READONLY).use { database ->
            database.rawQuery("SELECT count(DISTINCT photo) FROM feature", null).use {
                it.moveToFirst()
                it.getInt(0)
            }
        }
    }

    private companion object {
        const val LONG_ENOUGH_TO_ASK_MS = 300L
        const val PROGRESS_MS = 150L
    }
}
