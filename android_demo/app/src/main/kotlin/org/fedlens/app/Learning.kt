package org.fedlens.app

import android.os.SystemClock
import kotlinx.coroutines.CancellationException
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.Job
import kotlinx.coroutines.flow.MutableStateFlow
import kotlinx.coroutines.flow.StateFlow
import kotlinx.coroutines.launch
import kotlinx.coroutines.runBlocking
import kotlinx.coroutines.sync.Mutex
import kotlinx.coroutines.sync.withLock
import kotlinx.coroutines.withContext
import kotlinx.coroutines.withTimeoutOrNull
import org.fedlens.sdk.ClientSettings
import org.fedlens.sdk.ClientState
import org.fedlens.sdk.Event
import org.fedlens.sdk.FedLensClient
import org.fedlens.sdk.FedLensException
import org.fedlens.sdk.StateException
import org.fedlens.sdk.store.JournalEntry
import org.fedlens.sdk.toHex
import java.io.File
import java.io.IOException

/** The SDK's client, opened when it is needed; what it does, and what has left through it. Used in the main thread. */
internal class Learning(
    private val app: FedLensApp,
) {
    // Of the process that this began in.
    private val scope = app.scope
    private val opening = Mutex()
    private var client: FedLensClient? = null
    private var watching: Job? = null
    private var run: Job? = null
    private var isRenewing = false

    // Somebody at the phone has asked for the run that is under way, and is willing to wait for a round.
    private var isAskedFor = false

    // When the server had no work for the first time since the last round.
    private var idleSinceMs: Long? = null
    private val doing = MutableStateFlow<ClientState>(ClientState.Idle)
    private val running = MutableStateFlow(false)
    private val entries = MutableStateFlow<List<JournalEntry>?>(null)
    private val id = MutableStateFlow<String?>(null)

    /** What the client does, or how its last work ended. */
    val state: StateFlow<ClientState> = doing

    /** A round is under way, or waited for. */
    val isRunning: StateFlow<Boolean> = running

    /** What has left this phone, newest first; null while it has not been read yet. */
    val journal: StateFlow<List<JournalEntry>?> = entries

    /** By which operators know this phone, hexadecimal; null while it has not been read yet. */
    val clientId: StateFlow<String?> = id

    /** The owner allows learning, and the phone has joined. */
    val isAllowed: Boolean
        get() = app.settings.run { hasConsent && isEnrolled && !isPaused }

    /**
     * Takes part in one round, or goes on with what is under way already; null: it is not allowed.
     *
     * @param isByItself Nobody has asked for it: it is one round after the other, for as long as they succeed and the
     *     next one is not long in coming.
     */
    fun start(isByItself: Boolean = false): Job? {
        if (!isAllowed) return null
        val before = run?.takeIf { it.isActive }
        isAskedFor = !isByItself || (before != null && isAskedFor)
        if (before != null) return before
        running.value = true
        idleSinceMs = null
        return scope
            .launch {
                try {
                    withClient { client ->
                        var outcome: Event.Outcome
                        do {
                            outcome = client.runOnce()
                        } while (!isAskedFor && outcome is Event.RoundReported)
                        if (outcome is Event.RoundReported) renewModel(outcome)
                    }
                } catch (failure: FedLensException) {
                    failed(failure.reason.name.lowercase(), failure)
                } catch (failure: IOException) {
                    failed("input_output", failure)
                } finally {
                    running.value = false
                    client?.let { followDeletions(it) }
                }
                app.schedule.release()
            }.also { run = it }
    }

    /** Ends the round that is under way, for good; nothing that was computed is lost. */
    fun cancel() {
        app.schedule.release()
        run?.cancel()
    }

    /** Ends the round that is under way, which a job is to take up again; not one that somebody is looking on at. */
    fun interrupt() {
        if (!isAskedFor || !app.isSeen) run?.cancel()
    }

    /** Reads what has left, where somebody may have been told anything. */
    suspend fun readJournal() {
        if (!app.settings.hasConsent || app.settings.link == null) {
            entries.value = emptyList()
            return
        }
        entries.value = quietly { client -> withContext(Dispatchers.IO) { client.journal.entries() } } ?: emptyList()
        id.value = quietly { client -> withContext(Dispatchers.IO) { client.clientId.toHex() } }
    }

    /** Computes the features of new photos, so that the next round need not. */
    fun embedNew() {
        scope.launch { ifAllowed { it.embedNew() } }
    }

    /** Asks for the classes of the model that the server has told of last. */
    suspend fun readClasses() {
        val names = ifAllowed { it.classNames() }.orEmpty()
        if (names.isEmpty()) return
        app.settings.classNames = names
        app.suggestions.retry()
    }

    /** Asks the server for a model where none is known here, so that there are classes to choose from. */
    suspend fun findModel() {
        if (running.value || app.settings.classNames.isNotEmpty()) return
        ifAllowed { it.checkIn() }
        readClasses()
    }

    /**
     * Does something with the client, which is opened before if it is not.
     *
     * @param isFarewell Consent is not asked for: the server is to forget this phone.
     * @throws StateException There is no consent, the phone has joined nowhere, or the client was closed meanwhile.
     */
    suspend fun <T> withClient(
        isFarewell: Boolean = false,
        use: suspend (FedLensClient) -> T,
    ): T {
        val opened =
            opening.withLock {
                // Asked here: consent may have been withdrawn while the client was being closed.
                if (!isFarewell && !app.settings.hasConsent) throw notEnrolled("the owner has not consented")
                client ?: open()
            }
        return try {
            use(opened)
        } catch (failure: IllegalStateException) {
            // To be cancelled is such a failure too.
            if (failure is CancellationException || client === opened) throw failure
            throw StateException(StateException.Reason.IN_USE, "the client was closed meanwhile", failure)
        }
    }

    /** Ends what is under way and closes the client. */
    suspend fun close() {
        cancel()
        opening.withLock {
            watching?.cancel()
            val closing = client
            client = null
            app.photos.followDeletions(null)
            withContext(Dispatchers.IO) { closing?.close() }
            doing.value = ClientState.Idle
            entries.value = null
            id.value = null
            // Whoever was being asked does not answer any more.
            app.suggestions.forget()
        }
    }

    /** Closes the client and deletes what it keeps here, its identity too. */
    suspend fun erase() {
        close()
        withContext(Dispatchers.IO) {
            try {
                app.surroundings.secrets(app.clientFolder).delete()
            } catch (_: StateException) {
                // Without its file, which goes with the folder, the key in a broken keystore opens nothing.
            }
            app.clientFolder.deleteRecursively()
        }
    }

    /** For the end of the process. */
    fun closeNow() {
        client?.close()
        client = null
    }

    /** Suggestions are to come from the newest model; what is said of the round that has just ended stays. */
    private suspend fun renewModel(ended: Event.RoundReported) {
        isRenewing = true
        try {
            withTimeoutOrNull(app.surroundings.patienceMs) { ifAllowed { it.checkIn() } }
        } finally {
            isRenewing = false
        }
        doing.value = ClientState.Reported(ended.task, ended.round)
        app.suggestions.forget()
    }

    private suspend fun open(): FedLensClient {
        val settings = app.settings
        val link = settings.link ?: throw notEnrolled("the phone has joined nowhere")
        val folder = app.clientFolder
        val album = app.photos.album()
        val fresh =
            FedLensClient(
                link.server,
                folder,
                album,
                app.surroundings.platform,
                ClientSettings(
                    enrolmentToken = link.token,
                    policy = { settings.policy },
                    pins = link.pins,
                    ca = link.pem?.let { pem -> File(folder.apply { mkdirs() }, "ca.pem").apply { writeText(pem) } },
                    secrets = app.surroundings.secrets(folder),
                ),
                ::happened,
            )
        client = fresh
        followDeletions(fresh)
        watching = scope.launch { fresh.state.collect { if (!isRenewing) doing.value = it } }
        return fresh
    }

    /**
     * Has what was computed of photos that are erased go too: at once, or when a training that needs the client's thread
     * is over. The album remembers for how long that takes, and beyond the end of the process.
     */
    private fun followDeletions(client: FedLensClient) {
        scope.launch {
            app.photos.followDeletions { digests ->
                if (running.value) throw later("a training is under way", null)
                try {
                    runBlocking { client.dropFeatures(digests) }
                } catch (failure: FedLensException) {
                    throw later(failure.message.orEmpty(), failure)
                } catch (failure: IllegalStateException) {
                    throw later("the client is closed", failure)
                }
            }
        }
    }

    private fun notEnrolled(why: String) = StateException(StateException.Reason.NOT_ENROLLED, "$why: nothing leaves")

    private fun later(
        why: String,
        cause: Exception?,
    ) = StateException(StateException.Reason.IN_USE, "features of erased photos are deleted later: $why", cause)

    /** In a thread of the client's. */
    private fun happened(event: Event) {
        when (event) {
            is Event.Waiting ->
                scope.launch {
                    endIfIdle(event.retryAfterMs)
                    readClasses()
                }
            Event.TasksFinished -> scope.launch { readClasses() }
            is Event.RoundStarted -> scope.launch { idleSinceMs = null }
            is Event.RoundReported ->
                scope.launch {
                    app.suggestions.forget()
                    readJournal()
                }
            is Event.RoundFailed, is Event.RoundRefused -> scope.launch { readJournal() }
            else -> Unit
        }
    }

    /** Nobody is to keep the phone awake for rounds that do not come: Android starts the job again in an hour. */
    private fun endIfIdle(retryAfterMs: Long) {
        val nowMs = SystemClock.elapsedRealtime()
        val sinceMs = idleSinceMs ?: nowMs.also { idleSinceMs = it }
        val isLong = nowMs - sinceMs + retryAfterMs > app.surroundings.longestIdleMs
        if (isLong && !isAskedFor) run?.cancel()
    }

    private fun failed(
        reason: String,
        failure: Exception,
    ) {
        // What the client says is better, but where it could not even be opened it says nothing.
        val isTold = doing.value is ClientState.Failed || doing.value is ClientState.Refused
        if (!isTold) doing.value = ClientState.Failed(reason, failure.message.orEmpty())
    }

    /** As [quietly], for what the server may be asked for; null where that is not allowed, as in a pause. */
    private suspend fun <T> ifAllowed(use: suspend (FedLensClient) -> T): T? =
        if (isAllowed) quietly { if (isAllowed) use(it) else null } else null

    private suspend fun <T> quietly(use: suspend (FedLensClient) -> T): T? =
        try {
            withClient(use = use)
        } catch (_: FedLensException) {
            null
        } catch (_: IOException) {
            null
        }
}
