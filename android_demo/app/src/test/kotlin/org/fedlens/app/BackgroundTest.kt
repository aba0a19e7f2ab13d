package org.fedlens.app

import android.app.NotificationManager
import android.app.job.JobInfo
import android.app.job.JobScheduler
import android.content.Intent
import android.net.ConnectivityManager
import android.os.PowerManager
import org.fedlens.app.Phone.isShown
import org.fedlens.app.Phone.next
import org.fedlens.app.Phone.open
import org.fedlens.app.Phone.press
import org.fedlens.app.Phone.text
import org.fedlens.app.Phone.until
import org.fedlens.proto.v1.WaitReason
import org.fedlens.sdk.schedule.StopReceiver
import org.junit.Assert.assertEquals
import org.junit.Assert.assertFalse
import org.junit.Assert.assertNotNull
import org.junit.Assert.assertNull
import org.junit.Assert.assertTrue
import org.junit.Test
import org.junit.runner.RunWith
import org.robolectric.RobolectricTestRunner
import org.robolectric.Shadows.shadowOf
import org.robolectric.annotation.Config
import org.robolectric.annotation.GraphicsMode
import org.robolectric.shadows.ShadowNetwork
import java.util.concurrent.CountDownLatch
import java.util.concurrent.TimeUnit

/** Background learning, and how it ends. */
@RunWith(RobolectricTestRunner::class)
@Config(sdk = [34, 35], application = TestApp::class)
@GraphicsMode(GraphicsMode.Mode.NATIVE)
class BackgroundTest {
    private val app get() = Phone.app
    private val scheduler get() = app.getSystemService(JobScheduler::class.java)
    private val notifications get() = shadowOf(app.getSystemService(NotificationManager::class.java))

    private fun regular(): JobInfo? = scheduler.getPendingJob(PlayedJobs.REGULAR)

    @Test
    fun `each setting is a condition of the job, and nothing is scheduled without consent or in a pause`() {
        shadowOf(app).grantPermissions(android.Manifest.permission.RECEIVE_BOOT_COMPLETED)
        app.settings.hasConsent = true
        app.settings.isEnrolled = true
        val screen = open<SettingsActivity>().get()
        assertNull(regular())
        screen.press(R.id.background)
        val first = checkNotNull(regular())
        assertTrue(first.isPeriodic && first.isPersisted)
        assertTrue(first.isRequireCharging)
        assertEquals(JobInfo.NETWORK_TYPE_UNMETERED, networkOf(first))
        assertFalse(first.isRequireDeviceIdle)

        screen.press(R.id.charging)
        assertFalse(checkNotNull(regular()).isRequireCharging)
        screen.press(R.id.unmetered)
        assertEquals(JobInfo.NETWORK_TYPE_ANY, networkOf(checkNotNull(regular())))
        screen.press(R.id.idle)
        assertTrue(checkNotNull(regular()).isRequireDeviceIdle)

        screen.press(R.id.paused)
        assertNull(regular())
        screen.press(R.id.paused)
        assertNotNull(regular())
        screen.press(R.id.withdraw)
        assertNull(regular())
        assertFalse(app.settings.hasConsent)
    }

    @Test
    fun `without the permission to start with the phone the job does not outlive it`() {
        shadowOf(app).denyPermissions(android.Manifest.permission.RECEIVE_BOOT_COMPLETED)
        app.settings.hasConsent = true
        app.settings.isEnrolled = true
        app.settings.learnsInBackground = true
        app.learning.schedule()

        assertFalse(checkNotNull(regular()).isPersisted)
    }

    @Test
    fun `the job learns round after round and says when it is done`() {
        PlayedServer(rounds = 2).use { server ->
            joinWithPhoto(server)
            val job = startRegular()
            until("done") { job.isFinished }
            assertFalse(job.comesAgain)
            assertEquals(2, server.updates.size)
            assertEquals(0, notifications.size())
        }
    }

    @Test
    fun `no job is left without consent, before joining and in a pause, and one that starts asks nobody`() {
        val refusals: List<Settings.() -> Unit> =
            listOf({ hasConsent = false }, { isEnrolled = false }, { isPaused = true })
        for (refuse in refusals) {
            app.settings.run {
                hasConsent = true
                isEnrolled = true
                isPaused = false
                learnsInBackground = true
            }
            app.learning.schedule()
            assertTrue(app.learning.start())
            assertEquals(2, scheduler.allPendingJobs.size)
            app.settings.refuse()
            app.startAgain()
            assertEquals(0, scheduler.allPendingJobs.size)
            assertFalse(app.learning.start())
        }
        app.fedlens.schedule()
        val job = app.jobs.start(PlayedJobs.REGULAR)
        // A job that gives up cancels itself, and Android may stop it before it says that it is finished.
        until("done") { job.isFinished || PlayedJobs.REGULAR in app.jobs.stopped }
        assertFalse(job.comesAgain || app.clientFolder.exists())
    }

    @Test
    fun `a job that Android stops ends what it does, and one asked for by hand comes again`() {
        PlayedServer().use { server ->
            server.waitReason = WaitReason.WAIT_REASON_POPULATION
            joinWithPhoto(server)
            val screen = open<CollectActivity>()
            learnNow(screen.get())
            screen.pause().stop()
            val job = app.jobs.now
            assertTrue(app.jobs.stop(PlayedJobs.NOW))
            until("ended") { !app.learning.isRunning }
            Phone.idle()
            assertFalse(job.isFinished)
            assertNotNull(scheduler.getPendingJob(PlayedJobs.NOW))
            assertEquals(0, notifications.size())
        }
    }

    @Test
    fun `a job that Android stops leaves alone what another one wants`() {
        PlayedServer().use { server ->
            server.waitReason = WaitReason.WAIT_REASON_POPULATION
            joinWithPhoto(server)
            learnNow(open<CollectActivity>().get())
            startRegular()
            app.jobs.stop(PlayedJobs.REGULAR)
            Phone.idle()
            assertTrue("the other job is there", app.learning.isRunning)
            app.jobs.stop(PlayedJobs.NOW)
            until("ended") { !app.learning.isRunning }
        }
    }

    @Test
    fun `a round that is cancelled or paused before its job starts is not begun`() {
        PlayedServer().use { server ->
            joinWithPhoto(server)
            app.jobs.hasTime = false
            val asked = server.checkIns.size
            val screen = open<CollectActivity>().get()
            screen.press(R.id.learn_now)
            assertNotNull(scheduler.getPendingJob(PlayedJobs.NOW))
            until("asking") { screen.text(R.id.status_title) == app.getString(R.string.asking_title) }
            screen.press(R.id.cancel)
            assertNull(scheduler.getPendingJob(PlayedJobs.NOW))
            until("cancelled") { screen.isShown(R.id.learn_now) }

            screen.press(R.id.learn_now)
            open<SettingsActivity>().get().press(R.id.paused)
            assertNull(scheduler.getPendingJob(PlayedJobs.NOW))
            assertFalse(app.learning.isRunning)
            assertEquals(asked, server.checkIns.size)
        }
    }

    @Test
    fun `a job that has started ends with its round and not by being stopped`() {
        PlayedServer().use { server ->
            server.waitReason = WaitReason.WAIT_REASON_POPULATION
            joinWithPhoto(server)
            val screen = open<CollectActivity>().get()
            learnNow(screen)
            val job = app.jobs.now
            screen.press(R.id.cancel)
            until("finished") { job.isFinished }
            assertFalse(job.comesAgain)
            assertEquals(emptyList<Int>(), app.jobs.stopped)
            assertFalse(app.learning.isRunning)
        }
    }

    @Test
    fun `a round that Cancel ends leaves the regular job scheduled, and one by hand outlives its end`() {
        PlayedServer().use { server ->
            server.waitReason = WaitReason.WAIT_REASON_POPULATION
            server.waitMs = 1_000
            joinWithPhoto(server)
            app.settings.learnsInBackground = true
            app.learning.schedule()
            val screen = open<CollectActivity>().get()
            learnNow(screen)
            open<SettingsActivity>().get().press(R.id.background)
            assertNull(regular())
            assertTrue(app.learning.isRunning)
            open<SettingsActivity>().get().press(R.id.background)
            screen.press(R.id.cancel)
            until("cancelled") { !app.learning.isRunning }
            assertNotNull(regular())
        }
    }

    @Test
    fun `a job that nobody has asked for does not wait for a round that is not to come soon`() {
        PlayedServer().use { server ->
            server.waitReason = WaitReason.WAIT_REASON_POPULATION
            joinWithPhoto(server)
            val job = startRegular()
            until("done") { job.isFinished }
            assertFalse(job.comesAgain)
        }
    }

    @Test
    fun `why there was no round is still said when its job has ended`() {
        PlayedServer().use { server ->
            server.waitReason = WaitReason.WAIT_REASON_POPULATION
            server.waitMs = 600_000 // longer than a job waits
            joinWithPhoto(server)
            val screen = open<CollectActivity>().get()
            screen.press(R.id.learn_now)
            until("over") { !app.learning.isRunning && screen.isShown(R.id.learn_now) }
            assertEquals(app.getString(R.string.waiting_title), screen.text(R.id.status_title))
            assertEquals(app.getString(R.string.waiting_population), screen.text(R.id.status_text))
        }
    }

    @Test
    fun `a phone that is too hot says so`() {
        PlayedServer().use { server ->
            joinWithPhoto(server)
            shadowOf(app.getSystemService(PowerManager::class.java))
                .setCurrentThermalStatus(PowerManager.THERMAL_STATUS_SEVERE)
            val screen = open<CollectActivity>().get()
            screen.press(R.id.learn_now)
            until("said") { screen.text(R.id.status_title) == app.getString(R.string.too_hot_title) }
            assertEquals(0, server.updates.size)
        }
    }

    @Test
    fun `a job does not ask while the pause that an earlier one was told goes on`() {
        PlayedServer().use { server ->
            server.waitReason = WaitReason.WAIT_REASON_REST
            server.waitMs = 600_000 // longer than a job waits
            joinWithPhoto(server)
            val asked = server.checkIns.size
            repeat(2) {
                val job = startRegular()
                until("done") { job.isFinished }
            }
            assertEquals(asked + 1, server.checkIns.size)
        }
    }

    @Test
    fun `background learning comes back where Android has dropped it`() {
        app.settings.hasConsent = true
        app.settings.isEnrolled = true
        app.settings.learnsInBackground = true
        app.learning.schedule()
        scheduler.cancelAll()
        open<CollectActivity>()
        assertNotNull(regular())
    }

    @Test
    fun `a pause ends what is being fetched for a suggestion`() {
        PlayedServer().use { server ->
            Phone.join(server)
            Phone.addPhoto("cat", 3, label = null)
            val joined = server.requests.size
            server.onRequest = { PlayedServer.Fate.LOST_BEFORE }
            open<CollectActivity>()
            until("asking") { app.suggestions.all.value.isNotEmpty() && server.requests.size > joined }
            open<SettingsActivity>().get().press(R.id.paused)
            until("given up") { app.suggestions.all.value.isEmpty() }
            val asked = server.requests.size
            Phone.spend(LONGER_THAN_A_RETRY_MS)
            assertEquals(asked, server.requests.size)
        }
    }

    @Test
    fun `the notification counts the steps of training`() {
        val state = org.fedlens.sdk.ClientState.Training(PlayedServer.TASK, 2, step = 4, steps = 16)
        val notification = shadowOf(LearnNotification.of(app, state))
        assertEquals(app.getString(R.string.training_title, 2), notification.contentTitle)
        assertEquals(app.getString(R.string.training_text, 4, 16), notification.contentText)
        // A quarter.
        assertEquals(250 to 1000, notification.progress to notification.max)
    }

    @Test
    fun `the notification says what is done and cancels it`() {
        PlayedServer().use { server ->
            server.waitReason = WaitReason.WAIT_REASON_NEXT_ROUND
            joinWithPhoto(server)
            assertTrue(app.learning.start())
            until("waiting") { app.fedlens.status.value.state is org.fedlens.sdk.ClientState.Waiting }
            val notification = LearnNotification.of(app, app.fedlens.status.value.state)
            assertEquals(app.getString(R.string.waiting_title), shadowOf(notification).contentTitle)
            // Nothing is being done: a bar would say otherwise.
            assertFalse(shadowOf(notification).isIndeterminate)
            val opens = shadowOf(notification.contentIntent).savedIntent
            assertTrue("one that is open is used", opens.flags and Intent.FLAG_ACTIVITY_CLEAR_TOP != 0)
            val button = shadowOf(notification.actions.single().actionIntent).savedIntent
            StopReceiver().onReceive(app, button)
            until("cancelled") { !app.learning.isRunning }
        }
    }

    @Test
    fun `no network and a pause are said as what they are`() {
        PlayedServer().use { server ->
            joinWithPhoto(server)
            val screen = open<CollectActivity>().get()
            val manager = shadowOf(app.getSystemService(ConnectivityManager::class.java))
            val network = ShadowNetwork.newInstance(1)
            manager.networkCallbacks.toList().forEach { it.onLost(network) }
            until("no network") { screen.text(R.id.status_title) == app.getString(R.string.no_network_title) }
            manager.networkCallbacks.toList().forEach { it.onAvailable(network) }
            until("a network") { screen.text(R.id.status_title) == app.getString(R.string.ready_title) }
            open<SettingsActivity>().get().press(R.id.paused)
            val paused = open<CollectActivity>().get()
            assertEquals(app.getString(R.string.paused_title), paused.text(R.id.status_title))
            assertFalse(app.learning.start())
            paused.press(R.id.resume)
            until("resumed") { paused.text(R.id.status_title) == app.getString(R.string.ready_title) }
        }
    }

    @Test
    fun `erasing everything tells the server and leaves nothing`() {
        PlayedServer().use { server ->
            joinWithPhoto(server)
            val screen = open<EraseActivity>().get()
            screen.press(R.id.erase)
            until("erased") { screen.text(R.id.erase_state) == app.getString(R.string.erased_title) }
            assertEquals("DELETE /v1/clients/self", server.requests.last())
            assertFalse(app.clientFolder.exists() || app.albumFolder.exists())
            assertFalse(app.settings.hasConsent || app.settings.isEnrolled)
            assertNull(app.settings.link)
            screen.press(R.id.start_anew)
            assertEquals(
                EnrolActivity::class.java.name,
                shadowOf(screen).nextStartedActivity.component?.className,
            )
        }
    }

    @Test
    fun `a server that cannot be told leaves everything until the owner wants it erased here anyway`() {
        PlayedServer().use { joinWithPhoto(it) }
        val screen = open<EraseActivity>().get()
        screen.press(R.id.erase)
        until("not told") { screen.isShown(R.id.erase_anyway) }
        assertTrue(app.clientFolder.exists() && app.settings.isEnrolled)
        screen.press(R.id.erase_anyway)
        until("erased") { screen.text(R.id.erase_state) == app.getString(R.string.erased_title) }
        assertEquals(app.getString(R.string.erased_here_only), screen.text(R.id.erase_text))
        assertFalse(app.clientFolder.exists() || app.albumFolder.exists())
    }

    @Test
    fun `a phone whose server cannot be told learns on, and tries to tell it again`() {
        PlayedServer().use { server ->
            joinWithPhoto(server)
            app.settings.learnsInBackground = true
            app.learning.schedule()
            server.onRequest = { PlayedServer.Fate.LOST_BEFORE }
            val screen = open<EraseActivity>().get()
            screen.press(R.id.erase)
            assertFalse(app.learning.isAllowed)
            until("not told") { screen.isShown(R.id.erase_anyway) }
            assertTrue(app.learning.isAllowed)
            assertNotNull(regular())
            server.onRequest = { PlayedServer.Fate.ANSWERED }
            screen.press(R.id.erase)
            until("erased") { screen.text(R.id.erase_state) == app.getString(R.string.erased_title) }
        }
    }

    @Test
    fun `a process that ends before it hears that the server has forgotten the phone does not enrol it anew`() {
        PlayedServer().use { server ->
            joinWithPhoto(server)
            app.settings.learnsInBackground = true
            val isAsked = CountDownLatch(1)
            val isOver = CountDownLatch(1)
            server.onRequest = {
                isAsked.countDown()
                isOver.await(1, TimeUnit.MINUTES)
                PlayedServer.Fate.LOST_AFTER
            }
            open<EraseActivity>().get().press(R.id.erase)
            until("asked") { isAsked.count == 0L }
            app.startAgain()
            isOver.countDown()
            server.requests.clear()
            assertFalse(app.settings.hasConsent || app.learning.start())
            assertNull(regular())
            // What is left goes from the screen to which the app leads.
            val home = open<CollectActivity>().get()
            assertEquals(ConsentActivity::class.java, home.next())
            server.onRequest = { PlayedServer.Fate.ANSWERED }
            val screen = open<EraseActivity>().get()
            screen.press(R.id.erase)
            until("erased") { screen.text(R.id.erase_state) == app.getString(R.string.erased_title) }
            assertEquals(setOf("DELETE /v1/clients/self"), server.requests.toSet())
        }
    }

    @Test
    fun `what cannot be deleted is said, and can be tried again`() {
        PlayedServer().use { server ->
            joinWithPhoto(server)
            // A name that Java cannot say.
            shell("touch \"$(printf '\\377')\"")
            val screen = open<EraseActivity>().get()
            screen.press(R.id.erase)
            until("said") { screen.text(R.id.erase_state) == app.getString(R.string.not_erased_title) }
            assertFalse(app.settings.hasConsent || screen.isShown(R.id.erase_anyway) || screen.isShown(R.id.keep))
            shell("rm *")
            screen.press(R.id.erase)
            until("erased") { screen.text(R.id.erase_state) == app.getString(R.string.erased_title) }
            assertFalse(app.clientFolder.exists() || app.albumFolder.exists())
        }
    }

    private fun shell(command: String) =
        assertEquals(0, ProcessBuilder("sh", "-c", command).directory(app.albumFolder).start().waitFor())

    @Test
    fun `who leaves while everything is being erased is led to the beginning, and can erase again`() {
        PlayedServer().use { server ->
            joinWithPhoto(server)
            val isLeft = CountDownLatch(1)
            server.onRequest = {
                isLeft.await(1, TimeUnit.MINUTES)
                PlayedServer.Fate.ANSWERED
            }
            val settings = open<SettingsActivity>()
            settings.pause().stop()
            val erase = open<EraseActivity>()
            erase.get().press(R.id.erase)
            erase.pause().stop()
            settings.start().resume()
            isLeft.countDown()
            until("sent on") { settings.get().isFinishing }
            val next = shadowOf(settings.get()).nextStartedActivity
            assertEquals(EnrolActivity::class.java.name, next.component?.className)

            val again = open<EraseActivity>().get()
            assertEquals(app.getString(R.string.erase_title), again.text(R.id.erase_state))
        }
    }

    @Test
    fun `who has withdrawn consent can still have everything erased`() {
        PlayedServer().use { server ->
            joinWithPhoto(server)
            open<SettingsActivity>().get().press(R.id.withdraw)
            Phone.idle()
            val asked = server.requests.size
            val consent = open<ConsentActivity>().get()
            assertTrue(consent.isShown(R.id.withdrawn) && consent.isShown(R.id.erase_all))
            assertEquals(asked, server.requests.size)
            val erase = open<EraseActivity>(Intent(app, EraseActivity::class.java)).get()
            erase.press(R.id.erase)
            until("erased") { erase.isShown(R.id.start_anew) }
            assertEquals("DELETE /v1/clients/self", server.requests.last())
        }
    }

    @Test
    fun `a model that is kept local is received, and nothing is uploaded`() {
        PlayedServer().use { server ->
            joinWithPhoto(server)
            app.settings.keepsModelLocal = true
            val screen = open<CollectActivity>().get()
            screen.press(R.id.learn_now)
            until("given up") { screen.text(R.id.status_title) == app.getString(R.string.policy_title) }
            assertEquals(0, server.updates.size)
            assertTrue(server.requests.any { it.endsWith("/failure") })
        }
    }

    private fun learnNow(screen: CollectActivity) {
        screen.press(R.id.learn_now)
        assertNotNull(scheduler.getPendingJob(PlayedJobs.NOW))
        until("waiting") { screen.text(R.id.status_text) == app.getString(R.string.waiting_population) }
    }

    private fun joinWithPhoto(server: PlayedServer) {
        Phone.join(server)
        Phone.addPhoto("cat", 3)
    }

    private fun startRegular(): PlayedJobs.Running {
        app.settings.learnsInBackground = true
        app.learning.schedule()
        return app.jobs.start(PlayedJobs.REGULAR)
    }

    // What stands in its place tells more than there is to ask here.
    @Suppress("DEPRECATION")
    private fun networkOf(job: JobInfo): Int = job.networkType

    private companion object {
        const val LONGER_THAN_A_RETRY_MS = 1_500L
    }
}
