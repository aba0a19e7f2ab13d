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
import org.fedlens.sdk.Publishers
import org.fedlens.sdk.StateException
import org.fedlens.sdk.model.Model
import org.fedlens.sdk.model.Models
import org.fedlens.sdk.store.JournalEntry
import org.fedlens.sdk.toHex
import java.io.File
import java.io.IOException

/** The SDK's client, opened when needed, with its state and its journal. Main thread only. */
internal class Learning(
    private val app: FedLensApp,
) {
    // The scope of the process in which this object was made.
    private val scope = app.scope
    private val opening = Mutex()
    private var client: FedLensClient? = null
    private var watching: Job? = null
    private var run: Job? = null
    private var isRenewing = false

    // The user asked for the current run and is willing to wait for a round.
    private var isAskedFor = false

    // The first time since the last round at which the server had no work.
    private var idleSinceMs: Long? = null
    private val doing = MutableStateFlow<ClientState>(ClientState.Idle)
    private val running = MutableStateFlow(false)
    private val entries = MutableStateFlow<List<JournalEntry>?>(null)
    private val id = MutableStateFlow<String?>(null)
    private val known = MutableStateFlow<Models?>(null)

    /** The client's state, or the result of its last work. */
    val state: StateFlow<ClientState> = doing

    /** True while a round is under way or awaited. */
    val isRunning: StateFlow<Boolean> = running

    /** The journal, newest first; null until it has been read. */
    val journal: StateFlow<List<JournalEntry>?> = entries

    /** The client id, hexadecimal, by which operators know this phone; null until it has been read. */
    val clientId: StateFlow<String?> = id

    /** The models of this phone; null until they have been read. */
    val models: StateFlow<Models?> = known

    /** True if the owner allows learning and the phone has joined. */
    val isAllowed: Boolean
        get() = app.settings.run { hasConsent && isEnrolled && !isPaused }

    /**
     * Take part in one round, or join the run that is under way; null if learning is not allowed.
     *
     * @param isByItself The run was not asked for by the user: it takes round after round while they succeed and follow
     *     soon.
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

    /** End the round that is under way, for good; nothing that was computed is lost. */
    fun cancel() {
        app.schedule.release()
        run?.cancel()
    }

    /** End the current round, which a job is to resume; spare a round that the user asked for and is watching. */
    fun interrupt() {
        if (!isAskedFor || !app.isSeen) run?.cancel()
    }

    /** Read the journal, if the phone may have sent anything. */
    suspend fun readJournal() {
        if (!app.settings.hasConsent || app.settings.link == null) {
            entries.value = emptyList()
            return
        }
        entries.value = quietly { client -> withContext(Dispatchers.IO) { client.journal.entries() } } ?: emptyList()
        id.value = quietly { client -> withContext(Dispatchers.IO) { client.clientId.toHex() } }
    }

    /** Read the models of this phone with their last results. */
    suspend fun readModels() {
        known.value = quietly { it.models() }
    }

    /** Count what the models get right of the owner's test photos; nothing is sent. */
    suspend fun testModels() {
        ifAllowed { it.testModels() }?.let { known.value = it }
    }

    /** Make this model the one that makes suggestions. */
    suspend fun adopt(model: Model) {
        ifAllowed { it.adopt(model) }
        readModels()
        testModels()
    }

    /** Compute the features of new photos, so that the next round need not. */
    fun embedNew() {
        scope.launch { ifAllowed { it.embedNew() } }
    }

    /** Read the classes of the model that the server announced last. */
    suspend fun readClasses() {
        val language = app.settings.locale
        val names = ifAllowed { it.displayNames(language) }.orEmpty()
        if (names.isEmpty()) return
        app.settings.keepClasses(names, language)
        app.suggestions.retry()
    }

    /** Ask the server for a model if none is known, so that there are classes to choose from, with names to show. */
    suspend fun findModel() {
        if (running.value) return
        if (app.settings.classNames.isEmpty()) ifAllowed { it.checkIn() }
        if (!app.settings.knowsDisplayNames) readClasses()
    }

    /**
     * Call [use] with the client, opening it if necessary.
     *
     * @param isFarewell Consent is not required: the server is to forget this phone.
     * @throws StateException There is no consent, the phone has not joined, or the client was closed meanwhile.
     */
    suspend fun <T> withClient(
        isFarewell: Boolean = false,
        use: suspend (FedLensClient) -> T,
    ): T {
        val opened =
            opening.withLock {
                // Checked under the lock: consent may have been withdrawn while the client was being closed.
                if (!isFarewell && !app.settings.hasConsent) throw notEnrolled("the owner has not consented")
                client ?: open()
            }
        return try {
            use(opened)
        } catch (failure: IllegalStateException) {
            // Cancellation is an IllegalStateException too.
            if (failure is CancellationException || client === opened) throw failure
            throw StateException(StateException.Reason.IN_USE, "the client was closed meanwhile", failure)
        }
    }

    /** End what is under way and close the client. */
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
            known.value = null
            // Requests for suggestions that were under way will not be answered.
            app.suggestions.forget()
        }
    }

    /** Close the client and delete its state, including its identity. */
    suspend fun erase() {
        close()
        withContext(Dispatchers.IO) {
            try {
                app.surroundings.secrets(app.clientFolder).delete()
            } catch (_: StateException) {
                // Its file is deleted with the folder below; without it, the key in a broken keystore is worthless.
            }
            app.clientFolder.deleteRecursively()
        }
    }

    /** Close the client at the end of the process. */
    fun closeNow() {
        client?.close()
        client = null
    }

    /** Fetch the newest model for suggestions; the state still shows the round that has just ended. */
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

    // The longer one is there from Android 9 on.
    @Suppress("DEPRECATION")
    private val appVersion get() = app.packageManager.getPackageInfo(app.packageName, 0).versionCode.toLong()

    private suspend fun open(): FedLensClient {
        val settings = app.settings
        val link = settings.link ?: throw notEnrolled("the phone has not joined a server")
        val folder = app.clientFolder
        val album = app.photos.album()
        val fresh =
            FedLensClient(
                link.server,
                folder,
                album,
                app.surroundings.platform,
                ClientSettings(
                    publishers = publishers(link),
                    enrolmentToken = link.token,
                    policy = { app.surroundings.limits(settings.policy) },
                    pins = link.pins,
                    ca = link.pem?.let { pem -> File(folder.apply { mkdirs() }, "ca.pem").apply { writeText(pem) } },
                    secrets = app.surroundings.secrets(folder),
                    clientVersion = appVersion,
                ),
                ::happened,
            )
        client = fresh
        followDeletions(fresh)
        watching = scope.launch { fresh.state.collect { if (!isRenewing) doing.value = it } }
        return fresh
    }

    private fun publishers(link: EnrolmentLink): Publishers =
        if (app.publishersFromLink && link.publishers.isNotEmpty()) {
            Publishers.Keys { link.keys }
        } else {
            Publishers.TrustServer
        }

    /**
     * Delete features of erased photos: at once, or after a training that occupies the client's thread. Until then the
     * album remembers the photos, even across restarts.
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

    private fun notEnrolled(why: String) = StateException(StateException.Reason.NOT_ENROLLED, "$why; nothing is sent")

    private fun later(
        why: String,
        cause: Exception?,
    ) = StateException(StateException.Reason.IN_USE, "features of erased photos are deleted later: $why", cause)

    /** Called on the client's thread. */
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
            is Event.ModelAdopted ->
                scope.launch {
                    app.suggestions.forget()
                    if (known.value != null) readModels()
                }
            is Event.RoundFailed, is Event.RoundRefused -> scope.launch { readJournal() }
            else -> Unit
        }
    }

    /** End a run without work, so that it does not keep the phone awake: Android starts the job again in an hour. */
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
        // The client's own state is more precise, but a client that could not be opened has none.
        val isReported = doing.value is ClientState.Failed || doing.value is ClientState.Refused
        if (!isReported) doing.value = ClientState.Failed(reason, failure.message.orEmpty())
    }

    /** Run a request to the server, as [quietly]; null if it is not allowed, as during a pause. */
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
