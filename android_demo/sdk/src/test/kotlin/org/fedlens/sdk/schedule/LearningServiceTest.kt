package org.fedlens.sdk.schedule

import android.app.Application
import android.app.Notification
import android.app.NotificationManager
import android.app.job.JobInfo
import android.app.job.JobParameters
import android.app.job.JobScheduler
import android.content.Intent
import android.os.Build
import android.os.Looper
import kotlinx.coroutines.delay
import kotlinx.coroutines.flow.first
import kotlinx.coroutines.runBlocking
import kotlinx.coroutines.withTimeout
import org.fedlens.sdk.AndroidPlatform
import org.fedlens.sdk.ClientSettings
import org.fedlens.sdk.ClientState
import org.fedlens.sdk.FedLens
import org.fedlens.sdk.Platform
import org.fedlens.sdk.Publishers
import org.fedlens.sdk.StateException
import org.fedlens.sdk.Status
import org.fedlens.sdk.net.Backoff
import org.fedlens.sdk.onAndroid
import org.fedlens.sdk.store.Database
import org.fedlens.sdk.store.FileSecret
import org.fedlens.sdk.store.FolderLock
import org.fedlens.sdk.store.SecretStore
import org.junit.After
import org.junit.Assert.assertArrayEquals
import org.junit.Assert.assertEquals
import org.junit.Assert.assertFalse
import org.junit.Assert.assertNotNull
import org.junit.Assert.assertNull
import org.junit.Assert.assertThrows
import org.junit.Assert.assertTrue
import org.junit.Test
import org.junit.runner.RunWith
import org.robolectric.Robolectric
import org.robolectric.RobolectricTestRunner
import org.robolectric.RuntimeEnvironment
import org.robolectric.Shadows.shadowOf
import org.robolectric.annotation.Config
import java.io.File
import java.net.ServerSocket
import java.util.concurrent.ConcurrentHashMap
import java.util.concurrent.CopyOnWriteArrayList
import java.util.concurrent.CountDownLatch
import java.util.function.Function
import java.util.function.Supplier

/** The one entry point and its jobs, as an app has them: everything here is called on the main thread. */
@RunWith(RobolectricTestRunner::class)
@Config(sdk = [35])
class LearningServiceTest {
    private val app: Application = RuntimeEnvironment.getApplication()
    private val scheduler = checkNotNull(app.getSystemService(JobScheduler::class.java))
    private val service = Robolectric.buildService(LearningService::class.java).create().bind().get()
    private val ids = JobIds()
    private val onMain = CopyOnWriteArrayList<String>()
    private val shown = shadowOf(app.getSystemService(NotificationManager::class.java))
    private val reached = ConcurrentHashMap.newKeySet<String>()
    private val folder = File(app.applicationInfo.dataDir, "files/fedlens")

    private fun create(
        server: String = "https://127.0.0.1:1",
        more: FedLens.Setup.() -> Unit = {},
    ): FedLens =
        FedLens.create(app) {
            this.server = server
            settings = settings()
            platform = NotingPlatform(AndroidPlatform(app))
            more()
        }

    private fun settings(secret: File = File(app.applicationInfo.dataDir, "secret")) =
        ClientSettings(
            Publishers.TrustServer,
            enrolmentToken = "token",
            secrets = Noting(FileSecret(secret.apply { parentFile?.mkdirs() })),
            backoff = Backoff(firstMs = 1, mostMs = 1),
        )

    @After
    fun close() {
        FedLens.current?.close()
    }

    @Test
    fun `nothing reads the disk on the main thread, and a server that is away means a later job`() {
        val fedlens = create()
        fedlens.schedule()
        assertNotNull(scheduler.getPendingJob(ids.periodic))
        assertTrue(service.onStartJob(jobParameters(ids.periodic)))
        val work = fedlens.jobs.works[ids.periodic]
        runBlocking { work?.join() }
        assertEquals(Background.SCHEDULED, fedlens.jobs.status.value.background)
        runBlocking { withTimeout(30_000) { fedlens.status.first { it.background == Background.SCHEDULED } } }
        assertEquals(0, runBlocking { fedlens.album() }.all().size)
        assertEquals(0, fedlens.albumAsync().get().all().size)
        assertEquals(listOf("album.sqlite3", "client.sqlite3", "secret"), (reached - "features.sqlite3").sorted())
        assertEquals(emptyList<String>(), onMain)
        assertTrue(shadowOf(service).isJobFinished && shadowOf(service).isRescheduleNeeded)
    }

    @Test
    fun `a job that Android stops says why, and comes again unless somebody ended it`() {
        // It takes calls and answers none.
        val silent = ServerSocket(0)
        val fedlens = create("https://127.0.0.1:${silent.localPort}")
        fedlens.schedule()
        val ends =
            mapOf(
                JobParameters.STOP_REASON_CONSTRAINT_CHARGING to (Background.INTERRUPTED to true),
                JobParameters.STOP_REASON_QUOTA to (Background.OUT_OF_QUOTA to true),
                JobParameters.STOP_REASON_USER to (Background.ENDED_BY_USER to false),
            )
        for ((reason, expected) in ends) {
            val stopped = jobParameters(ids.periodic, reason)
            service.onStartJob(stopped)
            assertEquals(expected.second, service.onStopJob(stopped))
            assertEquals(expected.first, fedlens.jobs.status.value.background)
        }
        fedlens.close()
        silent.close()
    }

    @Test
    fun `a federation may be joined later, and another one once everything is erased`() {
        var joined: FedLens.Federation? = null
        val fedlens = create { federation = Supplier { joined } }
        fedlens.schedule()
        service.onStartJob(jobParameters(ids.periodic))
        runBlocking { fedlens.status.first { it.background == Background.GIVEN_UP } }
        assertEquals("not_enrolled", (fedlens.status.value.state as ClientState.Failed).reason)
        assertFalse("client.sqlite3" in reached)

        joined = FedLens.Federation("https://127.0.0.1:3", settings())
        assertEquals(32, fedlens.client.clientId.size)
        runBlocking { fedlens.client.eraseHere() }
        for (server in listOf("https://127.0.0.1:1", "https://127.0.0.1:2")) {
            joined = FedLens.Federation(server, settings())
            assertEquals(32, fedlens.client.clientId.size)
            runBlocking {
                fedlens.album()
                fedlens.eraseHere()
            }
            assertFalse(folder.exists())
        }
    }

    @Test
    fun `who was forgotten is not enrolled again by a job`() {
        // A job that has begun to enrol may be known to the server, which is away here: it is held before that.
        val begun = CountDownLatch(1)
        val joined = FedLens.Federation("https://127.0.0.1:1", settings())
        val fedlens =
            create {
                federation =
                    Supplier {
                        if (begun.count == 0L) return@Supplier joined
                        begun.countDown()
                        until { FedLens.current?.jobs?.works?.get(ids.periodic)?.isCancelled == true }
                        null
                    }
            }
        fedlens.schedule()
        assertTrue(fedlens.learnNow())
        service.onStartJob(jobParameters(ids.periodic))
        begun.await()
        assertFalse("it was never enrolled", runBlocking { fedlens.forget() })
        until { shadowOf(service).isJobFinished }
        assertEquals(emptyList<JobInfo>(), scheduler.allPendingJobs)
        assertEquals(Background.OFF, fedlens.status.value.background)
    }

    @Test
    fun `a call during an erasure waits, and belongs to the client that comes then`() {
        val asking = Thread { FedLens.current?.client?.clientId }
        val android = AndroidPlatform(app)
        val whileClosing =
            object : Platform by android {
                override fun openDatabase(file: File): Database {
                    val database = android.openDatabase(file)
                    return object : Database by database {
                        override fun close() {
                            database.close()
                            if (file.name != "album.sqlite3" || asking.state != Thread.State.NEW) return
                            asking.start()
                            until { asking.state in setOf(Thread.State.BLOCKED, Thread.State.TERMINATED) }
                        }
                    }
                }
            }
        val setup: FedLens.Setup.() -> Unit = {
            platform = whileClosing
            settings = settings(File(folder, "secret"))
        }
        val fedlens = create(more = setup)
        runBlocking {
            fedlens.album()
            fedlens.eraseHere()
        }
        asking.join()
        val id = fedlens.client.clientId
        fedlens.close()
        assertArrayEquals(id, create(more = setup).client.clientId)
    }

    @Test
    fun `what another process uses is not erased`() {
        val fedlens = create()
        val state = File(folder, "client").apply { mkdirs() }
        FolderLock.take(state, "state folder").use {
            val error = assertThrows(StateException::class.java) { runBlocking { fedlens.eraseHere() } }
            assertEquals(StateException.Reason.IN_USE, error.reason)
        }
        assertTrue(state.exists())
    }

    // Before Android 14, where the notification is shown without the job: Robolectric drops that of a job.
    @Test
    fun `a notification follows what is done, and its button ends the job`() =
        onAndroid(Build.VERSION_CODES.TIRAMISU) {
            // It takes calls and answers none.
            val silent = ServerSocket(0)
            val fedlens = createWithNotification(silent)
            fedlens.schedule()
            service.onStartJob(jobParameters(ids.periodic))
            assertEquals("at once", 1, shown.size())
            until { shown.allNotifications.singleOrNull()?.let(::title) == "Enrolling" }
            StopReceiver().onReceive(app, shadowOf(fedlens.stopIntent).savedIntent)
            until { shadowOf(service).isJobFinished && shown.size() == 0 }
            assertEquals(Status(ClientState.Idle, Background.SCHEDULED), fedlens.status.value)
            assertFalse(shadowOf(service).isRescheduleNeeded)
            assertNotNull("the next period has another", scheduler.getPendingJob(ids.periodic))
            fedlens.close()
            silent.close()
        }

    @Test
    fun `a job that Android stops leaves the other one and its notification`() =
        onAndroid(Build.VERSION_CODES.TIRAMISU) {
            val silent = ServerSocket(0)
            val fedlens = createWithNotification(silent)
            service.onStartJob(jobParameters(ids.periodic))
            service.onStartJob(jobParameters(ids.now))
            service.onStopJob(jobParameters(ids.now))
            assertEquals(Background.RUNNING, fedlens.status.value.background)
            assertEquals(1, shown.size())
            fedlens.stop()
            until { shown.size() == 0 }
            assertEquals(Background.OFF, fedlens.status.value.background)
            fedlens.close()
            silent.close()
        }

    @Test
    fun `the notification of a job whose process was killed goes when the next one begins, or by its button`() =
        onAndroid(Build.VERSION_CODES.TIRAMISU) {
            val notifications = checkNotNull(app.getSystemService(NotificationManager::class.java))
            val left = Notification.Builder(app, "").build()
            notifications.notify(ids.now, left)
            ServerSocket(0).use(::createWithNotification)
            assertEquals(0, shown.size())
            notifications.notify(ids.now, left)
            StopReceiver().onReceive(app, Intent())
            assertEquals(0, shown.size())
        }

    private fun createWithNotification(server: ServerSocket): FedLens =
        create("https://127.0.0.1:${server.localPort}") {
            notification = Function { Notification.Builder(app, "").setContentTitle("${it.state}").build() }
        }

    private fun until(condition: () -> Boolean) = runBlocking { withTimeout(30_000) { while (!condition()) delay(10) } }

    @Test
    fun `a process has one FedLens, and a job without one does nothing`() {
        assertFalse(service.onStartJob(jobParameters(ids.periodic)))
        val first = create()
        assertEquals(first, FedLens.current)
        assertThrows(IllegalStateException::class.java) { create() }
        first.close()
        assertNull(FedLens.current)
        create()
    }

    @Test
    fun `a server and settings are asked for by name`() {
        val error = assertThrows(IllegalArgumentException::class.java) { FedLens.create(app) {} }
        assertEquals("server: found none, must be the address of a server", error.message)
        assertNull(FedLens.current)
    }

    private fun title(notification: Notification) = notification.extras.getString(Notification.EXTRA_TITLE)

    private fun note(what: String) {
        if (Looper.myLooper() == Looper.getMainLooper()) onMain += what
        reached += what
    }

    private inner class Noting(
        private val store: SecretStore,
    ) : SecretStore by store {
        override fun secret(): ByteArray {
            note("secret")
            return store.secret()
        }
    }

    private inner class NotingPlatform(
        private val android: Platform,
    ) : Platform by android {
        override fun openDatabase(file: File) = android.openDatabase(file).also { note(file.name) }
    }
}
