package org.fedlens.sdk

import com.google.protobuf.ByteString
import kotlinx.coroutines.CancellationException
import kotlinx.coroutines.CoroutineScope
import kotlinx.coroutines.CoroutineStart
import kotlinx.coroutines.NonCancellable
import kotlinx.coroutines.SupervisorJob
import kotlinx.coroutines.asCoroutineDispatcher
import kotlinx.coroutines.async
import kotlinx.coroutines.cancelAndJoin
import kotlinx.coroutines.currentCoroutineContext
import kotlinx.coroutines.flow.StateFlow
import kotlinx.coroutines.job
import kotlinx.coroutines.joinAll
import kotlinx.coroutines.launch
import kotlinx.coroutines.runBlocking
import kotlinx.coroutines.sync.Mutex
import kotlinx.coroutines.sync.withLock
import kotlinx.coroutines.withContext
import org.fedlens.sdk.album.Album
import org.fedlens.sdk.store.Journal
import org.fedlens.sdk.store.State
import java.io.Closeable
import java.io.File
import java.io.IOException
import java.util.concurrent.Executors

/**
 * One member of a federation: everything from a check-in to a receipt.
 *
 *     check in -> fetch what is missing -> embed new photos -> local pass -> outbox -> upload -> forget
 *
 * The process may end at any arrow, and every call may be cancelled: what was computed is in the folder and arrives
 * next time, once. Calls may come from any thread; the work is done in a thread of the client's, one thing at a time.
 *
 * Nothing is opened before the first call; what fails then is a [StateException], or a [TransportException] where the
 * server's address cannot be trusted with the secret.
 */
public class FedLensClient internal constructor(
    private val site: Site,
    onEvent: (Event) -> Unit,
) : Closeable {
    private val teller = Teller(onEvent)
    private val executor =
        Executors.newSingleThreadExecutor { work -> Thread(work, "fedlens-client").apply { isDaemon = true } }
    private val thread = executor.asCoroutineDispatcher()
    private val scope = CoroutineScope(SupervisorJob() + thread)
    private val lock = Any()

    // Whoever has it, and nobody else, says what the client is doing.
    private val turn = Mutex()
    private var household: Household? = null
    private var isClosed = false

    /**
     * A client that is not opened yet.
     *
     * @param server Such as `https://fl.example.org:8443`.
     * @param folder For what must outlive the process; bound to this server, used by one process at a time.
     * @param album Where the photos come from.
     * @param platform What runs programs, decodes photos and opens databases here.
     * @param settings How to take part.
     * @param onEvent Called with everything that happens, in a thread of the client's; it must return quickly, throw
     *     nothing and not close the client.
     */
    public constructor(
        server: String,
        folder: File,
        album: Album,
        platform: Platform,
        settings: ClientSettings = ClientSettings(),
        onEvent: (Event) -> Unit = {},
    ) : this(Site(server.trimEnd('/'), folder, album, platform, settings), onEvent)

    /** The public id, 32 bytes, by which operators know this client. Reads the disk the first time. */
    public val clientId: ByteArray get() = household().state.clientId

    /** What has left this device. Reads the disk the first time. */
    public val journal: Journal get() = household().journal

    /** What the client is doing now; each change follows the event that leads to it. */
    public val state: StateFlow<ClientState> get() = teller.state

    /**
     * Takes part in round after round until every task has ended, or the caller is cancelled.
     *
     * @throws TransportException With `REFUSED` where the server does not want this client: a wrong token, revoked.
     * @throws FedLensException Something else that waiting does not mend.
     * @throws java.io.IOException The disk is full or broken.
     */
    public suspend fun run() {
        run(rounds = null)
    }

    /**
     * Delivers the result that is waiting in the outbox; if there is none, takes part in one round.
     *
     * @return How it ended.
     * @throws FedLensException As [run].
     * @throws java.io.IOException As [run].
     */
    public suspend fun runOnce(): Event.Outcome = inThread { working { it.runOnce() } }

    /**
     * Makes this client known where it is not yet, and asks once which model the server has for it, without taking
     * part in a round: what [predict], [embedNew] and [classNames] need. Work that the server has is left for [run]. It
     * waits for one that is under way.
     *
     * @throws FedLensException As [run].
     * @throws java.io.IOException As [run].
     */
    public suspend fun checkIn(): Unit = inThread { working { it.learnOfModel() } }

    /**
     * The same as [run], without coroutines.
     *
     * @param callbacks Take what happens, beside `onEvent`, from now on until the end.
     * @param rounds It ends after so many outcomes of [runOnce]; null: not before every task has ended.
     */
    public fun start(
        callbacks: Callbacks,
        rounds: Int? = null,
    ): Running {
        var error: Exception? = null
        // Undispatched, so that who is cancelled at once hears of his end too.
        val job =
            scope.launch(start = CoroutineStart.UNDISPATCHED) {
                teller.add(callbacks)
                try {
                    run(rounds)
                } catch (cancelled: CancellationException) {
                    throw cancelled
                } catch (failure: Exception) {
                    error = failure
                } catch (failure: Throwable) {
                    // Told, not thrown on: in a thread of the client's own it would end the app.
                    error = IllegalStateException("the client has ended: $failure", failure)
                } finally {
                    teller.remove(callbacks)
                    callbacks.onEnd(error)
                }
            }
        return object : Running {
            override fun cancel() = job.cancel()
        }
    }

    /**
     * The probability of each class, in label order, by the model that this client would use now: the one of which the
     * server has told last, with the tensors kept here. It waits for a training that is under way.
     *
     * What is missing of the model is fetched first, and without a network that is tried for as long as the settings'
     * `backoff` says, by default for ever: let `withTimeout` end it for a user who waits.
     *
     * @param photo A file.
     * @param task Whose model; null takes the first.
     * @throws PassException No check-in has told of a model yet, or it cannot be put together.
     * @throws PhotoException The photo cannot be decoded.
     * @throws FedLensException The model cannot be fetched or run.
     */
    public suspend fun predict(
        photo: File,
        task: Long? = null,
    ): Map<String, Double> = inThread { aside { it.member.predict(photo, task) } }

    /**
     * Embeds the album's photos that are not embedded yet, so that the next round need not; called when a photo has
     * arrived. Without a model, as before the first check-in, it does nothing. It may fetch, and wait, as [predict].
     *
     * @return How many were embedded.
     */
    public suspend fun embedNew(): Int = inThread { aside { it.member.embedNew() } }

    /**
     * Deletes what was computed of photos that are gone from the album.
     *
     * @param photos SHA-256, 32 bytes, of each photo's bytes.
     */
    public suspend fun dropFeatures(photos: Collection<ByteArray>): Unit =
        inThread { aside { it.features.forget(photos.map(ByteString::copyFrom)) } }

    /**
     * The classes of the model that [predict] uses, in label order; empty where no check-in has told of one yet. It may
     * fetch, and wait, as [predict].
     */
    public suspend fun classNames(): List<String> = inThread { aside { it.member.classNames() } }

    /**
     * Ends what is under way, has the server delete everything about this client, then deletes its identity and what
     * was kept here; photos stay, and the noisy answers that were given. What has been aggregated into a model stays in
     * it. The next call makes a new client.
     *
     * @return Whether an update is in a round that is just being aggregated and cannot be taken back.
     * @throws TransportException The server could not be told, or refuses, as it does where this client was revoked;
     *     nothing is deleted then. [eraseHere] deletes what is here all the same.
     */
    public suspend fun forget(): Boolean = leaving { aside { it.member.forget() } }

    /**
     * As [forget], but tells the server nothing, which keeps what it has: for a client that was revoked or whose server
     * is gone, and for a folder that cannot be opened any more. Where its database cannot be read, noisy answers go too.
     *
     * @throws StateException Another process uses the folder, or it cannot be written.
     */
    public suspend fun eraseHere(): Unit = leaving { }

    /**
     * Ends what is under way and lets another process use the folder; what was computed stays. Calls that wait end
     * with a [CancellationException]. Not to be called by callbacks.
     */
    override fun close() {
        synchronized(lock) {
            if (isClosed) return
            isClosed = true
        }
        runBlocking { scope.coroutineContext.job.cancelAndJoin() }
        try {
            synchronized(lock) { closeHousehold() }
        } finally {
            executor.shutdown()
        }
    }

    private suspend fun run(rounds: Int?) {
        inThread {
            var done = 0
            do {
                val outcome = working { it.runOnce() }
                done++
            } while (outcome != Event.TasksFinished && done != rounds)
        }
    }

    /** What the client does in its own name, which its state tells. */
    private suspend fun <T> working(block: suspend (Member) -> T): T =
        turn.withLock {
            try {
                block(household().member)
            } catch (cancelled: CancellationException) {
                teller.enter(ClientState.Idle)
                throw cancelled
            } catch (failure: Throwable) {
                teller.enter(ended(failure))
                throw failure
            }
        }

    /** What may be asked of a client while it takes part. */
    private suspend fun <T> aside(block: suspend (Household) -> T): T = teller.resuming { block(household()) }

    /** Ends every other call, and deletes what is here when [farewell] has been said. */
    private suspend fun <T> leaving(farewell: suspend () -> T): T {
        // Before it waits for the thread, which a training may hold.
        scope.coroutineContext.job.children.toList().forEach { it.cancel() }
        return inThread {
            endOthers()
            val answer = farewell()
            // Those that have come in the meantime.
            endOthers()
            synchronized(lock) {
                closeHousehold()
                State.erase(site.folder, site.platform::openDatabase, site.secrets)
            }
            teller.enter(ClientState.Idle)
            answer
        }
    }

    /** Ends every call but the one that asks for it. */
    private suspend fun endOthers() {
        val own = currentCoroutineContext().job
        while (true) {
            val others = scope.coroutineContext.job.children.filter { it != own }.toList()
            if (others.isEmpty()) return
            others.forEach { it.cancel() }
            others.joinAll()
        }
    }

    private suspend fun <T> inThread(block: suspend () -> T): T {
        check(!synchronized(lock) { isClosed }) { "this client is closed" }
        val work = scope.async { block() }
        return try {
            work.await()
        } finally {
            withContext(NonCancellable) { work.cancelAndJoin() }
        }
    }

    private fun household(): Household =
        synchronized(lock) {
            check(!isClosed) { "this client is closed" }
            household ?: Household.open(site, thread, teller).also { household = it }
        }

    private fun closeHousehold() {
        val leaving = household
        household = null
        leaving?.close()
    }

    private fun ended(failure: Throwable): ClientState =
        when {
            failure is TransportException && failure.reason == TransportException.Reason.REFUSED ->
                ClientState.Refused(failure.code, failure.message.orEmpty())
            failure is FedLensException ->
                ClientState.Failed(failure.reason.name.lowercase(), failure.message.orEmpty())
            failure is IOException -> ClientState.Failed("input_output", failure.message.orEmpty())
            else -> ClientState.Failed("internal", failure.toString())
        }
}
