package org.fedlens.sdk

import android.app.Notification
import android.app.NotificationManager
import android.app.PendingIntent
import android.content.Context
import android.content.Intent
import android.os.Build
import kotlinx.coroutines.CoroutineScope
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.SupervisorJob
import kotlinx.coroutines.cancel
import kotlinx.coroutines.flow.Flow
import kotlinx.coroutines.flow.SharingStarted
import kotlinx.coroutines.flow.StateFlow
import kotlinx.coroutines.flow.combine
import kotlinx.coroutines.flow.stateIn
import kotlinx.coroutines.future.future
import kotlinx.coroutines.launch
import kotlinx.coroutines.plus
import kotlinx.coroutines.withContext
import org.fedlens.sdk.album.ExampleSource
import org.fedlens.sdk.album.PhotoAlbum
import org.fedlens.sdk.model.Model
import org.fedlens.sdk.model.Models
import org.fedlens.sdk.schedule.Background
import org.fedlens.sdk.schedule.Conditions
import org.fedlens.sdk.schedule.JobIds
import org.fedlens.sdk.schedule.LearningJobs
import org.fedlens.sdk.schedule.StopReceiver
import org.fedlens.sdk.store.KeystoreSecret
import java.io.Closeable
import java.io.File
import java.util.concurrent.CompletableFuture
import java.util.function.Consumer
import java.util.function.Function
import java.util.function.Supplier

/**
 * Federated learning in an Android app: one album of photos, one client, and its jobs.
 *
 *     val fedlens = FedLens.create(this) {
 *         server = "https://fl.example.org:8443"
 *         settings = ClientSettings(Publishers.Keys { keys }, enrolmentToken = token)
 *     }
 *
 * An app that learns its server later, as from an invitation, gives a `federation` in place of `server` and `settings`.
 *
 * Everything may be called on the main thread, which never waits for the disk or the network. The photos are in
 * `files/fedlens/album` of the app, the client's state in `files/fedlens/client`.
 *
 * @property client The client, for everything that is not here.
 */
public class FedLens private constructor(
    private val context: Context,
    private val setup: Setup,
) : Closeable {
    private val platform = setup.platform ?: AndroidPlatform(context)
    private val scope = CoroutineScope(SupervisorJob() + Dispatchers.Default)

    // Other ways to the app's folder look whether it is there, on the disk.
    private val folder = File(context.applicationInfo.dataDir, "files/fedlens")
    private val albumLock = Any()
    private var openAlbum: PhotoAlbum? = null
    private val federation = setup.federation ?: setup.onlyFederation()
    internal val notificationId: Int = setup.notificationId
    internal val jobs: LearningJobs =
        LearningJobs(context.applicationContext, setup.conditions, setup.jobIds, isShown = setup.notification != null)
    public val client: FedLensClient = FedLensClient(::configuration) {}

    /** Every event from now on; who collects too slowly misses the oldest. [Callbacks] miss none. */
    public val events: Flow<Event> get() = client.events

    /** What the client and its jobs do. */
    public val status: StateFlow<Status> =
        combine(client.state, jobs.status) { state, jobs ->
            Status(if (state == ClientState.Idle) jobs.left ?: state else state, jobs.background)
        }
            // So that a change is seen as soon as the call that caused it returns.
            .stateIn(
                scope + Dispatchers.Unconfined,
                SharingStarted.Eagerly,
                Status(client.state.value, jobs.status.value.background),
            )

    /**
     * The photos with their labels.
     *
     * @throws StateException The album is open elsewhere, damaged, or not writable.
     */
    public suspend fun album(): PhotoAlbum = withContext(Dispatchers.IO) { opened() }

    /** [album] without coroutines. */
    public fun albumAsync(): CompletableFuture<PhotoAlbum> = scope.future { album() }

    /** [FedLensClient.predict] without coroutines. */
    @JvmOverloads
    public fun predictAsync(
        photo: File,
        task: Long? = null,
    ): CompletableFuture<Map<String, Double>> = scope.future { client.predict(photo, task) }

    /** [FedLensClient.predict] with a model, without coroutines. */
    public fun predictAsync(
        photo: File,
        model: Model,
    ): CompletableFuture<Map<String, Double>> = scope.future { client.predict(photo, model) }

    /** [FedLensClient.models] without coroutines. */
    @JvmOverloads
    public fun modelsAsync(task: Long? = null): CompletableFuture<Models> = scope.future { client.models(task) }

    /** [FedLensClient.testModels] without coroutines. */
    @JvmOverloads
    public fun testModelsAsync(task: Long? = null): CompletableFuture<Models> = scope.future { client.testModels(task) }

    /** [FedLensClient.adopt] without coroutines. */
    public fun adoptAsync(model: Model): CompletableFuture<Void?> =
        scope.future {
            client.adopt(model)
            null
        }

    /** [FedLensClient.checkIn] without coroutines. */
    public fun checkInAsync(): CompletableFuture<Void?> =
        scope.future {
            client.checkIn()
            null
        }

    /** [FedLensClient.runOnce] without coroutines. */
    public fun runOnceAsync(): CompletableFuture<Event.Outcome> = scope.future { client.runOnce() }

    /**
     * Conditions of learning in the background, at first those of the setup. What is scheduled is scheduled anew when
     * they change; set them at each start of the app.
     */
    public var conditions: Conditions by jobs::conditions

    /**
     * Learn in the background from now on, under the [conditions]; also after a restart of the phone, if the app has the
     * permission `RECEIVE_BOOT_COMPLETED`. Repeated calls have no effect: call it at each start of the app.
     */
    public fun schedule(): Unit = jobs.schedule()

    /** End what [schedule] has begun. What [learnNow] has begun goes on, and the app's other jobs stay. */
    public fun unschedule(): Unit = jobs.unschedule()

    /**
     * Take part in one round now, also if the user leaves the app; call it where the user has asked for it. On Android 14
     * and newer it is a user-initiated job, if the setup has a notification and the app has the permission
     * `RUN_USER_INITIATED_JOBS`; else, and on Android 12 and 13, an expedited one; otherwise, and where Android's quota
     * does not allow it, a plain one.
     *
     * @return False if Android takes no job.
     */
    public fun learnNow(): Boolean = jobs.scheduleNow()

    /** End the job that is running, and what [learnNow] has asked for; what was computed is kept. [schedule] stays. */
    public fun stop() {
        jobs.stop()
        hideNotification()
    }

    /** An intent to [stop], for a button of the notification. */
    public val stopIntent: PendingIntent
        get() {
            val stop = Intent(context, StopReceiver::class.java)
            return PendingIntent.getBroadcast(context, 0, stop, PendingIntent.FLAG_IMMUTABLE)
        }

    /**
     * End all learning, also what [schedule] has begun, and have the server and this phone forget the client, as
     * [FedLensClient.forget] does. If that fails, [schedule] again to go on.
     */
    public suspend fun forget(): Boolean {
        jobs.cancel()
        return client.forget()
    }

    /** [forget] without coroutines. */
    public fun forgetAsync(): CompletableFuture<Boolean> = scope.future { forget() }

    /**
     * End all learning, and delete everything on this phone: the client as [FedLensClient.eraseHere] does, noisy answers,
     * and the album, even one that cannot be opened. The server is told nothing: see [forget].
     *
     * @throws StateException It cannot be deleted, or another process uses it.
     */
    public suspend fun eraseHere() {
        jobs.cancel()
        client.leaving(::eraseFolder) {}
    }

    /** [eraseHere] without coroutines. */
    public fun eraseHereAsync(): CompletableFuture<Void?> =
        scope.future {
            eraseHere()
            null
        }

    /** Close the client, as [FedLensClient.close] does, and the album. Another may be created then. */
    override fun close() {
        synchronized(FedLens) { if (current === this) current = null }
        scope.cancel()
        client.close()
        synchronized(albumLock) { closeAlbum() }
    }

    /** The notification of a running job; null: there is none. */
    internal fun notification(): Notification? = setup.notification?.apply(status.value)

    /**
     * Remove the notification unless a job is running: before Android 14, it outlives its job, even one whose process was
     * killed.
     */
    internal fun hideNotification() {
        if (Build.VERSION.SDK_INT >= Build.VERSION_CODES.UPSIDE_DOWN_CAKE) return
        if (setup.notification == null || jobs.works.isNotEmpty()) return
        checkNotNull(context.getSystemService(NotificationManager::class.java)).cancel(notificationId)
    }

    private fun configuration(): ClientConfiguration {
        val joined =
            federation.get() ?: throw StateException(StateException.Reason.NOT_ENROLLED, "no federation is joined")
        return ClientConfiguration(
            joined.server.trimEnd('/'),
            File(folder, "client"),
            setup.examples ?: ExampleSource { opened().examples() },
            platform,
            joined.settings,
            secrets = joined.settings.secrets ?: KeystoreSecret(File(folder, "secret")),
        )
    }

    private fun eraseFolder() {
        try {
            configuration().erase()
        } catch (failure: StateException) {
            if (failure.reason == StateException.Reason.IN_USE) throw failure
            // Damaged, or of no federation: it goes with the folder.
        }
        synchronized(albumLock) {
            closeAlbum()
            if (!folder.deleteRecursively()) {
                throw StateException(StateException.Reason.NOT_WRITABLE, "$folder cannot be deleted; try again")
            }
        }
    }

    private fun opened(): PhotoAlbum =
        synchronized(albumLock) {
            openAlbum ?: PhotoAlbum.open(File(folder, "album"), platform).also { album ->
                openAlbum = album
                album.onDeleted { scope.launch { dropFeatures(album) } }
            }
        }

    private fun closeAlbum() {
        openAlbum?.close()
        openAlbum = null
    }

    /** Delete the features of deleted photos. Where that fails, the album remembers them until it is opened again. */
    private suspend fun dropFeatures(album: PhotoAlbum) {
        try {
            album.takeDeleted(client::dropFeatures)
        } catch (_: FedLensException) {
            // Such as a full disk.
        } catch (_: IllegalStateException) {
            // The client or the album was closed, or the call was cancelled.
        }
    }

    /**
     * The settings of a [FedLens].
     *
     * @property server Address of the server, such as `https://fl.example.org:8443`.
     * @property settings Settings of the client. Without `secrets`, its secret is wrapped by Android's keystore.
     * @property federation In place of [server] and [settings], the federation that was joined, which the app may learn
     *     later; null: none yet, and calls of the client fail for the reason `NOT_ENROLLED`. It is read at the first call
     *     of the client and at the first one after `forget` or `eraseHere`, on a thread that may read the disk. Before
     *     another federation is joined, the client of the one before must be erased.
     * @property conditions Conditions of learning in the background, which can be changed later.
     * @property jobIds Ids of the app's jobs.
     * @property notification Makes the notification of a running job, at its beginning and whenever [FedLens.status]
     *     changes, on any thread; null: there is none. A button may have [FedLens.stopIntent].
     * @property notificationId Its id.
     * @property platform Services of the system; null: those of Android.
     * @property examples Source of the examples to learn from; null: the [album].
     */
    public class Setup internal constructor() {
        public var server: String? = null
        public var settings: ClientSettings? = null
        public var federation: Supplier<Federation?>? = null
        public var conditions: Conditions = Conditions()
        public var jobIds: JobIds = JobIds()
        public var notification: Function<Status, Notification>? = null
        public var notificationId: Int = jobIds.now
        public var platform: Platform? = null
        public var examples: ExampleSource? = null

        internal fun onlyFederation(): Supplier<Federation?> {
            val only =
                Federation(
                    requireNotNull(server) { "server: found none, must be the address of a server" },
                    requireNotNull(settings) { "settings: found none, must be the settings of a client" },
                )
            return Supplier { only }
        }
    }

    /**
     * A federation that was joined.
     *
     * @property server As in [Setup].
     * @property settings As in [Setup].
     */
    public class Federation(
        public val server: String,
        public val settings: ClientSettings,
    )

    public companion object {
        /** The one of this process; null: none was created, or it was closed. */
        @JvmStatic
        @Volatile
        public var current: FedLens? = null
            private set

        /**
         * Create the FedLens of this process; call it in `Application.onCreate`, because jobs start there too. It reads
         * nothing from the disk.
         *
         * @throws IllegalArgumentException The server or the settings are missing.
         * @throws IllegalStateException There is one that is not closed, or this is a
         *     [process for programs][AndroidPlatform.isProgramProcess].
         */
        @JvmSynthetic
        public fun create(
            context: Context,
            setup: Setup.() -> Unit,
        ): FedLens =
            synchronized(this) {
                check(current == null) { "there is a FedLens in this process; close it first" }
                check(
                    !AndroidPlatform.isProgramProcess(),
                ) { "this process runs programs: Application.onCreate must return" }
                FedLens(context, Setup().apply(setup)).also {
                    current = it
                    it.hideNotification()
                }
            }

        /** [create] for Java. */
        @JvmStatic
        public fun create(
            context: Context,
            setup: Consumer<Setup>,
        ): FedLens = create(context) { setup.accept(this) }
    }
}

/**
 * What a client and its jobs do.
 *
 * @property state State of the client; while that is idle, the one in which the last job ended, unless it was stopped.
 * @property background What has become of learning in the background.
 */
public data class Status(
    val state: ClientState,
    val background: Background,
)
