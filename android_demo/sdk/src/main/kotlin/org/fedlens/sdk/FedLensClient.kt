package org.fedlens.sdk

import com.google.protobuf.ByteString
import kotlinx.coroutines.CancellationException
import kotlinx.coroutines.CoroutineDispatcher
import kotlinx.coroutines.CoroutineScope
import kotlinx.coroutines.CoroutineStart
import kotlinx.coroutines.NonCancellable
import kotlinx.coroutines.SupervisorJob
import kotlinx.coroutines.async
import kotlinx.coroutines.cancelAndJoin
import kotlinx.coroutines.flow.Flow
import kotlinx.coroutines.flow.StateFlow
import kotlinx.coroutines.job
import kotlinx.coroutines.launch
import kotlinx.coroutines.runBlocking
import kotlinx.coroutines.sync.Mutex
import kotlinx.coroutines.sync.withLock
import kotlinx.coroutines.withContext
import org.fedlens.sdk.album.ExampleSource
import org.fedlens.sdk.album.Features
import org.fedlens.sdk.model.Adoption
import org.fedlens.sdk.model.Model
import org.fedlens.sdk.model.ModelChoice
import org.fedlens.sdk.model.Models
import org.fedlens.sdk.store.Journal
import org.fedlens.sdk.training.PhotoReader
import java.io.Closeable
import java.io.File
import java.io.IOException
import java.util.Locale

/**
 * One client of a federation: everything from a check-in to a receipt.
 *
 *     check in -> fetch what is missing -> embed new photos -> local plan -> outbox -> upload -> forget
 *
 * The process may end at any arrow, and every call may be cancelled: results are in the folder and arrive next time,
 * exactly once. Calls may come from any thread; the client works on a thread of its own, one call at a time, and predicts
 * on another one.
 *
 * Opening happens at the first call. It can fail with a [StateException], or with a [TransportException] if the
 * server's address cannot be trusted with the secret.
 */
public class FedLensClient internal constructor(
    private val configurationOf: () -> ClientConfiguration,
    onEvent: (Event) -> Unit,
) : Closeable {
    private val reporter = EventReporter(onEvent)
    private val thread = threadOfItsOwn("fedlens-client")
    private val predicting = threadOfItsOwn("fedlens-predict")
    private val scope = CoroutineScope(SupervisorJob() + thread)
    private val lock = Any()

    // Held by the call that sets the client's state.
    private val turn = Mutex()
    private var resources: ClientResources? = null
    private var isClosed = false

    /**
     * Create a client without opening it.
     *
     * @param server Address of the server, such as `https://fl.example.org:8443`.
     * @param folder Folder for persistent state; bound to this server, used by one process at a time.
     * @param album Source of the examples.
     * @param platform Platform services: running programs, decoding photos, opening databases.
     * @param settings Settings of the client.
     * @param onEvent Called with every event on the client's thread; it must return quickly, and must neither throw nor
     *     close the client.
     */
    @JvmOverloads
    public constructor(
        server: String,
        folder: File,
        album: ExampleSource,
        platform: Platform,
        settings: ClientSettings,
        onEvent: (Event) -> Unit = {},
    ) : this({ ClientConfiguration(server.trimEnd('/'), folder, album, platform, settings) }, onEvent)

    /** The public id, 32 bytes, by which operators know this client. The first access reads the disk. */
    @get:Throws(StateException::class, TransportException::class)
    public val clientId: ByteArray get() = resources().state.clientId

    /** The log of what left this device. The first access reads the disk. */
    @get:Throws(StateException::class, TransportException::class)
    public val journal: Journal get() = resources().journal

    /** Every event from now on; who collects too slowly misses the oldest, but the constructor's `onEvent` none. */
    public val events: Flow<Event> get() = reporter.events

    /** The client's current state; each change follows the event that caused it. */
    public val state: StateFlow<ClientState> get() = reporter.state

    /**
     * Take part in round after round until every task has ended or the caller is cancelled.
     *
     * @throws TransportException With `REFUSED` if the server refuses this client: the token is wrong, or the client
     *     was revoked.
     * @throws FedLensException Another failure that waiting does not resolve.
     * @throws java.io.IOException The disk is full or broken.
     */
    public suspend fun run() {
        run(rounds = null)
    }

    /**
     * Deliver the result in the outbox, or take part in one round if there is none.
     *
     * @return The outcome.
     * @throws FedLensException As [run].
     * @throws java.io.IOException As [run].
     */
    public suspend fun runOnce(): Event.Outcome = runOnce(isHeld = true)

    /** [runOnce], in which the server holds check-ins, as the settings say, only if [isHeld]. */
    internal suspend fun runOnce(isHeld: Boolean): Event.Outcome = inThread { working { it.runOnce(isHeld) } }

    /**
     * Enrol this client if necessary and ask the server once for its current model, which [predict], [embedNew] and
     * [classNames] need. It takes part in no round, leaves work for [run], and waits for a `run` that is under way.
     *
     * @throws FedLensException As [run].
     * @throws java.io.IOException As [run].
     */
    public suspend fun checkIn(): Unit = inThread { working { it.learnOfModel() } }

    /**
     * [run] without coroutines.
     *
     * @param callbacks Receive events in addition to `onEvent`, until the end.
     * @param rounds Number of outcomes of [runOnce] after which it ends; null: when every task has ended.
     */
    @JvmOverloads
    public fun start(
        callbacks: Callbacks,
        rounds: Int? = null,
    ): Running {
        var error: Exception? = null
        // Undispatched, so that `onEnd` is called even after an immediate cancellation.
        val job =
            scope.launch(start = CoroutineStart.UNDISPATCHED) {
                reporter.add(callbacks)
                try {
                    run(rounds)
                } catch (cancelled: CancellationException) {
                    throw cancelled
                } catch (failure: Exception) {
                    error = failure
                } catch (failure: Throwable) {
                    // Reported, not rethrown: on the client's thread it would end the app.
                    error = IllegalStateException("the client has ended: $failure", failure)
                } finally {
                    reporter.remove(callbacks)
                    callbacks.onEnd(error)
                }
            }
        return object : Running {
            override fun cancel() = job.cancel()
        }
    }

    /**
     * The probability of each class, in label order, by the model in use: by default the one that the server announced
     * last, combined with the client state; the settings' `adoption` and [adopt] can choose another one. It waits
     * neither for a training that is under way nor for a metered network: if that model is not here, another one
     * predicts, unless an unmetered network brings it within two seconds.
     *
     * Only before there is any model on the phone it waits for an unmetered network's download, for as long as the
     * settings' `backoff` allows: use `withTimeout` for a user who waits.
     *
     * @param photo The photo's file.
     * @param task The task whose model to use; null: the first.
     * @throws AssignmentException No check-in has announced a model yet, or it cannot be assembled.
     * @throws PhotoException The photo cannot be decoded.
     * @throws TransportException With `NO_UNMETERED_NETWORK` if no model is here and the network costs something.
     * @throws FedLensException The model cannot be fetched or run.
     */
    public suspend fun predict(
        photo: File,
        task: Long? = null,
    ): Map<String, Double> = predict(task) { features(photo.readBytes()) }

    /** [predict] from the bytes of a photo's file. */
    public suspend fun predict(
        photo: ByteArray,
        task: Long? = null,
    ): Map<String, Double> = predict(task) { features(photo) }

    /**
     * [predict] from what the bundle's frozen backbone makes of an example, as in [Features].
     *
     * @throws EngineException With `BAD_INPUT` if they are not as many finite numbers as the model takes.
     */
    public suspend fun predict(
        features: FloatArray,
        task: Long? = null,
    ): Map<String, Double> = predict(task) { given(features) }

    /**
     * The probability of each class by a model of [models], to see what another one than that in use predicts. It is
     * fetched as in the other [predict].
     *
     * @throws FedLensException As the other [predict]; an [AssignmentException], too, if the model has been replaced.
     */
    public suspend fun predict(
        photo: File,
        model: Model,
    ): Map<String, Double> = beside { predict({ features(photo.readBytes()) }, model) }

    /**
     * The models of a task on this phone, with their last results on the phone's own test photos. It fetches nothing
     * and waits for no training.
     *
     * @param task As in [predict].
     */
    public suspend fun models(task: Long? = null): Models = beside { models(task) }

    /**
     * Test the models on this phone's own test photos, outside a round, and return them; nothing is sent. It waits for
     * no training. A newer model that is not here is tested, too, if an unmetered network brings it within two seconds.
     *
     * @param task As in [predict].
     * @throws FedLensException A model cannot be run.
     */
    public suspend fun testModels(task: Long? = null): Models = beside { testModels(task) }

    /**
     * Make a model of [models] the one that predicts on this phone: the newer one, or the previous one, which is a
     * roll-back. It is fetched as in [predict]. An older one than the newest stays, whatever the settings say, until
     * this is called again; after the newest, [Adoption] decides. Rounds go on with what the server assigns.
     *
     * @throws FedLensException As [predict]; an [AssignmentException], too, if the model has been replaced.
     */
    public suspend fun adopt(model: Model): Unit = beside { adopt(model) }

    /**
     * Fetch the announced model for [predict], over any network, and wait until it is here.
     *
     * @param task As in [predict].
     * @throws FedLensException As [predict].
     */
    public suspend fun fetchModel(task: Long? = null): Unit = beside { fetchModel(task) }

    /**
     * Embed new photos of the album ahead of the next round; call it after adding a photo. Without a model, as before
     * the first check-in, it does nothing. It fetches what is missing, over any network, and waits for a training.
     *
     * @return The number of photos embedded.
     */
    public suspend fun embedNew(): Int = inThread { aside { it.loop.embedNew() } }

    /**
     * Delete the features of photos that are no longer in the album.
     *
     * @param photos SHA-256, 32 bytes, of each photo's bytes.
     */
    public suspend fun dropFeatures(photos: Collection<ByteArray>): Unit =
        inThread { aside { it.predictor.dropFeatures(photos.map(ByteString::copyFrom)) } }

    /**
     * The classes of the announced model, in label order; empty if no check-in has announced one yet. It waits for no
     * training; without the bundle's manifest, it fetches that over any network.
     */
    public suspend fun classNames(): List<String> = inThread(predicting) { aside { it.loop.classNames() } }

    /**
     * The name of each class to show to people, in label order: the bundle's in the language of [locale], or in a more
     * general one; else the class name itself. Otherwise as [classNames].
     */
    public suspend fun displayNames(locale: Locale): Map<String, String> =
        inThread(predicting) { aside { it.loop.displayNames(locale) } }

    /**
     * Stop running work, tell the server to delete everything about this client, then delete its identity and state.
     * Photos stay, and so do noisy answers already given and what publishers withdrew. Updates aggregated into a model
     * stay in it. The next call, also a job's, creates a new client; [FedLens.forget] ends jobs first.
     *
     * @return True if an update is in a round that is being aggregated, and cannot be taken back.
     * @throws TransportException The server could not be reached within 20 seconds, or the time that the settings'
     *     `backoff` allows, or refuses, as for a revoked client; then nothing is deleted. [eraseHere] deletes the local
     *     state in any case.
     */
    public suspend fun forget(): Boolean = leaving { aside { it.loop.forget() } }

    /**
     * [forget] without telling the server, which keeps what it has: for a client that was revoked or whose server is
     * gone, and for a folder that can no longer be opened. If the database cannot be read, noisy answers are deleted
     * too.
     *
     * @throws StateException Another process uses the folder, or it cannot be written.
     */
    public suspend fun eraseHere(): Unit = leaving { }

    /**
     * Stop running work and release the folder for other processes; results stay. Waiting calls end with a
     * [CancellationException]. Callbacks must not call it, and neither should the main thread: it waits for the step of
     * training that runs.
     */
    override fun close() {
        synchronized(lock) {
            if (isClosed) return
            isClosed = true
        }
        runBlocking { scope.coroutineContext.job.cancelAndJoin() }
        try {
            synchronized(lock) { closeResources() }
        } finally {
            thread.close()
            predicting.close()
        }
    }

    private suspend fun predict(
        task: Long?,
        input: PhotoReader.() -> FloatArray,
    ): Map<String, Double> = beside { predict(input, task) }

    /** Ask about the models, beside a training that may be under way. */
    private suspend fun <T> beside(block: suspend ModelChoice.() -> T): T =
        inThread(predicting) { aside { it.loop.models.block() } }

    private suspend fun run(rounds: Int?) =
        inThread {
            for (round in 1..(rounds ?: Int.MAX_VALUE)) if (working { it.runOnce() } == Event.TasksFinished) break
        }

    /** Run work that the client's state reflects. */
    private suspend fun <T> working(block: suspend (ClientLoop) -> T): T =
        turn.withLock {
            try {
                reporter.working { block(resources().loop) }
            } catch (cancelled: CancellationException) {
                reporter.enter(ClientState.Idle)
                throw cancelled
            } catch (failure: Throwable) {
                reporter.enter(endedBy(failure))
                throw failure
            }
        }

    /** Run a request that is allowed while the client takes part. */
    private suspend fun <T> aside(block: suspend (ClientResources) -> T): T = reporter.aside { block(resources()) }

    /** Cancel every other call, run [farewell], and delete the local state by [erase] before it can be opened again. */
    internal suspend fun <T> leaving(
        erase: () -> Unit = { configurationOf().erase() },
        farewell: suspend () -> T,
    ): T {
        // Before waiting for the thread, which a training may occupy.
        scope.coroutineContext.job.children.toList().forEach { it.cancel() }
        return inThread {
            scope.endOthers()
            val result = farewell()
            // Calls that arrived in the meantime.
            scope.endOthers()
            synchronized(lock) {
                closeResources()
                erase()
            }
            reporter.enter(ClientState.Idle)
            result
        }
    }

    private suspend fun <T> inThread(
        where: CoroutineDispatcher = thread,
        block: suspend () -> T,
    ): T {
        check(!synchronized(lock) { isClosed }) { "this client is closed" }
        val work = scope.async(where) { block() }
        return try {
            work.await()
        } finally {
            withContext(NonCancellable) { work.cancelAndJoin() }
        }
    }

    private fun resources(): ClientResources =
        synchronized(lock) {
            check(!isClosed) { "this client is closed" }
            resources ?: ClientResources.open(configurationOf(), thread, predicting, reporter).also { resources = it }
        }

    private fun closeResources() {
        resources.also { resources = null }?.close()
    }
}
