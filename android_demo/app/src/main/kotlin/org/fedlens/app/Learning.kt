package org.fedlens.app

import kotlinx.coroutines.CancellationException
import kotlinx.coroutines.CoroutineStart
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.SupervisorJob
import kotlinx.coroutines.async
import kotlinx.coroutines.cancelChildren
import kotlinx.coroutines.currentCoroutineContext
import kotlinx.coroutines.ensureActive
import kotlinx.coroutines.flow.MutableStateFlow
import kotlinx.coroutines.flow.StateFlow
import kotlinx.coroutines.flow.distinctUntilChanged
import kotlinx.coroutines.flow.map
import kotlinx.coroutines.job
import kotlinx.coroutines.launch
import kotlinx.coroutines.withContext
import org.fedlens.sdk.ClientState
import org.fedlens.sdk.Event
import org.fedlens.sdk.FedLensClient
import org.fedlens.sdk.FedLensException
import org.fedlens.sdk.StateException
import org.fedlens.sdk.model.Model
import org.fedlens.sdk.model.Models
import org.fedlens.sdk.schedule.Background
import org.fedlens.sdk.store.Journal
import org.fedlens.sdk.store.JournalEntry
import org.fedlens.sdk.toHex
import java.io.IOException

/** Learning as the owner allows it, and what the client says to screens. Main thread only. */
internal class Learning(
    private val app: FedLensApp,
) {
    private val fedlens = app.fedlens
    private val scope = app.scope

    // What is asked of the client outside its jobs; a pause ends it.
    private val requests = SupervisorJob(scope.coroutineContext.job)
    private val entries = MutableStateFlow<List<JournalEntry>?>(null)
    private val sums = MutableStateFlow(Journal.Totals(0, 0, 0))
    private val id = MutableStateFlow<String?>(null)
    private val known = MutableStateFlow<Models?>(null)

    /** The newest entries of the journal, newest first; null until it has been read. */
    val journal: StateFlow<List<JournalEntry>?> = entries

    /** Totals of the whole journal. */
    val totals: StateFlow<Journal.Totals> = sums

    /** The client id, hexadecimal, by which operators know this phone; null until it has been read. */
    val clientId: StateFlow<String?> = id

    /** The models of this phone; null until they have been read. */
    val models: StateFlow<Models?> = known

    /** True if the owner allows learning and the phone has joined. */
    val isAllowed: Boolean
        get() = app.settings.run { hasConsent && isEnrolled && !isPaused && !isErasing }

    /** True while a round is under way or awaited. */
    val isRunning: Boolean
        get() = fedlens.status.value.background.let { it == Background.REQUESTED || it == Background.RUNNING }

    init {
        // Undispatched, so that no event is missed.
        scope.launch(start = CoroutineStart.UNDISPATCHED) { fedlens.events.collect(::happened) }
        scope.launch {
            // The job has learnt of the model that has come of the round.
            val hasEnded = fedlens.status.map { it.state is ClientState.Reported && !isRunning }
            hasEnded.distinctUntilChanged().collect { if (it) app.suggestions.forget() }
        }
    }

    /** Take part in one round, also if the user leaves the app; false if that is not allowed. */
    fun start(): Boolean = isAllowed && fedlens.learnNow()

    /** Schedule learning in the background as the settings say, or end everything if learning is not allowed. */
    fun schedule() {
        fedlens.conditions = app.settings.conditions
        if (isAllowed && app.settings.learnsInBackground) fedlens.schedule() else fedlens.unschedule()
        if (isAllowed) return
        fedlens.stop()
        // Downloads and repeated requests outside a round, too.
        requests.cancelChildren()
        app.suggestions.forget()
    }

    /** Read the journal, if the phone may have sent anything. */
    suspend fun readJournal() {
        if (!app.settings.hasConsent || app.settings.link == null) {
            entries.value = emptyList()
            sums.value = Journal.Totals(0, 0, 0)
            return
        }
        quietly { client -> withContext(Dispatchers.IO) { client.journal.totals() } }?.let { sums.value = it }
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

    /** Compute the features of new photos, so that the next round need not; not over a network that rounds must not use. */
    fun embedNew() {
        if (app.settings.onlyUnmetered && !app.platform.hasUnmeteredNetwork) return
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
        if (isRunning) return
        if (app.settings.classNames.isEmpty()) ifAllowed { it.checkIn() }
        if (!app.settings.knowsDisplayNames) readClasses()
    }

    /**
     * Ask the client, until learning is not allowed any more.
     *
     * @throws StateException There is no consent, or learning was paused meanwhile.
     */
    suspend fun <T> withClient(use: suspend (FedLensClient) -> T): T {
        if (!app.settings.hasConsent) throw notAllowed("the owner has not consented; nothing is sent")
        return try {
            scope.async(requests) { use(fedlens.client) }.await()
        } catch (_: CancellationException) {
            currentCoroutineContext().ensureActive()
            throw notAllowed("the owner has paused learning")
        }
    }

    private fun notAllowed(why: String) = StateException(StateException.Reason.NOT_ENROLLED, why)

    private fun happened(event: Event) {
        scope.launch {
            when (event) {
                is Event.Waiting, Event.TasksFinished -> readClasses()
                is Event.RoundReported, is Event.RoundFailed, is Event.RoundRefused -> readJournal()
                is Event.ModelAdopted -> {
                    app.suggestions.forget()
                    if (known.value != null) readModels()
                }
                else -> Unit
            }
        }
    }

    /** Run a request to the server, as [quietly]; null if it is not allowed, as during a pause. */
    private suspend fun <T> ifAllowed(use: suspend (FedLensClient) -> T): T? = if (isAllowed) quietly(use) else null

    private suspend fun <T> quietly(use: suspend (FedLensClient) -> T): T? =
        try {
            withClient(use)
        } catch (_: FedLensException) {
            null
        } catch (_: IOException) {
            null
        }
}
