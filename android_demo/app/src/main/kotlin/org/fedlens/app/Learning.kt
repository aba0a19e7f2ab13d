package org.fedlens.app

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
     * @param goOn Takes part in one round after the other, for as long as they succeed.
     */
    fun start(goOn: Boolean = false): Job? {
        if (!isAllowed) return null
        run?.takeIf { it.isActive }?.let { return it }
        running.value = true
        isRenewing = false
        return scope
            .launch {
                try {
                    withClient { client ->
                        var outcome: Event.Outcome
                        do {
                            outcome = client.runOnce()
                        } while (goOn && outcome is Event.RoundReported)
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
            }.also { run = it }
    }

    /** Ends the round that is under way; nothing that was computed is lost. */
    fun cancel() {
        run?.cancel()
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
        if (isAllowed) scope.launch { quietly { it.embedNew() } }
    }

    /** Asks for the classes of the model that the server has told of last. */
    suspend fun readClasses() {
        val names = quietly { it.classNames() }.orEmpty()
        if (names.isNotEmpty()) app.settings.classNames = names
    }

    /** Asks the server for a model where none is known here, so that there are classes to choose from. */
    suspend fun findModel() {
        if (!isAllowed || running.value || app.settings.classNames.isNotEmpty()) return
        quietly { it.checkIn() }
        readClasses()
    }

    /**
     * Does something with the client, which is opened before if it is not.
     *
     * @param isFarewell Consent is not asked for: the server is to forget this phone.
     */
    suspend fun <T> withClient(
        isFarewell: Boolean = false,
        use: suspend (FedLensClient) -> T,
    ): T {
        check(isFarewell || app.settings.hasConsent) { "nothing leaves before the owner has consented" }
        return use(opening.withLock { client ?: open() })
    }

    /** Ends what is under way and closes the client. */
    suspend fun close() {
        cancel()
        opening.withLock {
            watching?.cancel()
            val closing = client
            client = null
            if (closing != null) app.photos.album().onDeleted(null)
            withContext(Dispatchers.IO) { closing?.close() }
            doing.value = ClientState.Idle
            entries.value = null
            id.value = null
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
        withTimeoutOrNull(app.surroundings.patienceMs) { quietly { it.checkIn() } }
        isRenewing = false
        doing.value = ClientState.Reported(ended.task, ended.round)
        app.suggestions.forget()
    }

    private suspend fun open(): FedLensClient {
        val settings = app.settings
        val link = checkNotNull(settings.link) { "the phone has joined nowhere" }
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
        scope.launch(Dispatchers.IO) {
            app.photos.album().onDeleted { digests ->
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

    private fun later(
        why: String,
        cause: Exception?,
    ) = StateException(StateException.Reason.IN_USE, "features of erased photos are deleted later: $why", cause)

    /** In a thread of the client's. */
    private fun happened(event: Event) {
        when (event) {
            is Event.Waiting, Event.TasksFinished -> scope.launch { readClasses() }
            is Event.RoundReported ->
                scope.launch {
                    app.suggestions.forget()
                    readJournal()
                }
            is Event.RoundFailed, is Event.RoundRefused -> scope.launch { readJournal() }
            else -> Unit
        }
    }

    private fun failed(
        reason: String,
        failure: Exception,
    ) {
        // What the client says is better, but where it could not even be opened it says nothing.
        val isTold = doing.value is ClientState.Failed || doing.value is ClientState.Refused
        if (!isTold) doing.value = ClientState.Failed(reason, failure.message.orEmpty())
    }

    private suspend fun <T> quietly(use: suspend (FedLensClient) -> T): T? =
        try {
            withClient(use = use)
        } catch (_: FedLensException) {
            null
        } catch (_: IOException) {
            null
        }
}
