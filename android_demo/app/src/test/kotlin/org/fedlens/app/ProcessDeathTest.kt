package org.fedlens.app

import android.app.Activity
import android.os.Bundle
import kotlinx.coroutines.launch
import org.fedlens.app.Phone.idle
import org.fedlens.app.Phone.isShown
import org.fedlens.app.Phone.open
import org.fedlens.app.Phone.pick
import org.fedlens.app.Phone.press
import org.fedlens.app.Phone.type
import org.fedlens.app.Phone.until
import org.fedlens.app.PlayedServer.Fate
import org.fedlens.sdk.store.JournalEntry
import org.junit.Assert.assertEquals
import org.junit.Assert.assertTrue
import org.junit.Test
import org.junit.runner.RunWith
import org.robolectric.Robolectric
import org.robolectric.RobolectricTestRunner
import org.robolectric.Shadows.shadowOf
import org.robolectric.android.controller.ActivityController
import org.robolectric.annotation.Config
import org.robolectric.annotation.GraphicsMode
import java.util.concurrent.CountDownLatch
import java.util.concurrent.TimeUnit
import kotlin.random.Random

/**
 * Death of the process during a request, before or after the server carries it out. After a restart the screen is as
 * before, the story continues, and the update arrives exactly once.
 */
@RunWith(RobolectricTestRunner::class)
@Config(sdk = [35], application = TestApp::class)
@GraphicsMode(GraphicsMode.Mode.NATIVE)
class ProcessDeathTest {
    private val app get() = Phone.app
    private var dying = CountDownLatch(1)
    private var dead = CountDownLatch(1)

    // The second life has begun.
    private var isOver = false
    private val isDying get() = dying.count == 0L && !isOver

    @Test
    fun `wherever the process ends, the story goes on and the update arrives once`() {
        val places = (0 until REQUESTS).flatMap { listOf(it to Fate.LOST_BEFORE, it to Fate.LOST_AFTER) }
        for ((point, fate) in places.shuffled(Random(SEED)).take(POINTS)) {
            val story = "$fate at request $point"
            startOver()
            PlayedServer().use { server ->
                server.onRequest = { number -> if (number == point) die(fate) else Fate.ANSWERED }
                live(server)
                assertEquals("$story is no point of it", 0, dying.count)
                live(server)
                assertEquals(story, 1, server.updates.distinctBy { it.toList() }.size)
                assertEquals(story, 1, app.photos.all.value?.size)
                assertTrue(story, isReported())
            }
        }
    }

    /** Called on the server's thread: the answer comes after the process has ended. */
    private fun die(fate: Fate): Fate {
        dying.countDown()
        dead.await(1, TimeUnit.MINUTES)
        return fate
    }

    private fun startOver() {
        app.settings.erase()
        app.startAgain()
        app.clientFolder.deleteRecursively()
        app.albumFolder.deleteRecursively()
        dying = CountDownLatch(1)
        dead = CountDownLatch(1)
        isOver = false
    }

    /** One life of the process: to the end of the story, or its own. */
    private fun live(server: PlayedServer) {
        while (true) {
            val screen = if (app.settings.isEnrolled) home() else join(server)
            if (isDying) return end(screen)
            screen.pause().stop().destroy()
            idle()
            if (app.settings.isEnrolled && isReported()) return
        }
    }

    private fun join(server: PlayedServer): ActivityController<EnrolActivity> {
        val screen = open<EnrolActivity>()
        screen.get().type(R.id.link, server.link)
        screen.get().press(R.id.join)
        if (!app.settings.hasConsent) {
            val consent = open<ConsentActivity>(shadowOf(screen.get()).nextStartedActivity).get()
            for (answer in listOf(R.id.class_counts, R.id.evaluation, R.id.agree)) consent.press(answer)
        }
        untilOrDeath("joined") { app.settings.isEnrolled && app.joining.state.value != Joining.State.Asking }
        return screen
    }

    private fun home(): ActivityController<CollectActivity> {
        val screen = open<CollectActivity>()
        untilOrDeath("an album") { app.photos.all.value != null }
        if (!isDying && app.photos.all.value?.isEmpty() == true) {
            screen.pick(listOf(Drawn.address("cat", 1)))
            untilOrDeath("a photo") { app.photos.all.value?.size == 1 }
        }
        if (!isDying && app.photos.all.value?.single()?.label == null) {
            untilOrDeath("a suggestion") { screen.get().isShown(R.id.confirm) }
            if (!isDying) screen.get().press(R.id.confirm)
            untilOrDeath("labelled") { app.photos.all.value?.single()?.label != null }
        }
        if (!isDying) {
            untilOrDeath("ready") { screen.get().isShown(R.id.learn_now) }
            if (!isDying) screen.get().press(R.id.learn_now)
            untilOrDeath("a round") { !app.learning.isRunning }
        }
        return screen
    }

    /** Restart the process: Android restores the screen, everything else is lost. */
    private fun end(screen: ActivityController<out Activity>) {
        val kept = Bundle()
        screen.saveInstanceState(kept).pause().stop().destroy()
        app.startAgain()
        dead.countDown()
        idle()
        isOver = true
        val again = Robolectric.buildActivity(screen.get().javaClass).setup(kept)
        idle()
        again.pause().stop().destroy()
    }

    private fun untilOrDeath(
        what: String,
        condition: () -> Boolean,
    ) = until(what) { isDying || condition() }

    private fun isReported(): Boolean {
        var entries: List<JournalEntry>? = null
        app.scope.launch {
            app.learning.readJournal()
            entries = app.learning.journal.value
        }
        until("the journal") { entries != null }
        return entries.orEmpty().any {
            it is JournalEntry.Upload && it.outcome == JournalEntry.Outcome.DELIVERED
        }
    }

    private companion object {
        const val SEED = 6
        const val POINTS = 11

        /** From the first one to the update. */
        const val REQUESTS = 9
    }
}
