package org.fedlens.sdk

import kotlinx.coroutines.CoroutineDispatcher
import kotlinx.coroutines.delay
import org.fedlens.sdk.ClientSettings.Isolation
import org.fedlens.sdk.EngineException.Reason
import org.fedlens.sdk.album.ExampleSource
import org.fedlens.sdk.engine.CrashLog
import org.fedlens.sdk.engine.Engine
import org.fedlens.sdk.engine.ProgramEngine
import org.fedlens.sdk.engine.ProgramRuntime
import org.fedlens.sdk.model.ModelStore
import org.fedlens.sdk.model.Predictor
import org.fedlens.sdk.net.HttpTransport
import org.fedlens.sdk.net.Transport
import org.fedlens.sdk.store.Cache
import org.fedlens.sdk.store.Crashes
import org.fedlens.sdk.store.FeatureCache
import org.fedlens.sdk.store.FileSecret
import org.fedlens.sdk.store.Floors
import org.fedlens.sdk.store.Journal
import org.fedlens.sdk.store.NoisyAnswers
import org.fedlens.sdk.store.Outbox
import org.fedlens.sdk.store.SecretStore
import org.fedlens.sdk.store.StateFolder
import org.fedlens.sdk.store.StateTensors
import org.fedlens.sdk.store.TensorFiles
import org.fedlens.sdk.training.Assignments
import org.fedlens.sdk.training.BundleTrust
import java.io.Closeable
import java.io.File

/**
 * The configuration of a client: its address, folder, photos and factories.
 *
 * @property server Address of the server.
 * @property folder Folder for persistent state.
 * @property album The photos.
 * @property platform Platform services.
 * @property settings Settings of the client.
 * @property transportOf Creates the transport, given the secret.
 * @property engineOf Creates the engine for a bundle, given the folder for its trials, the count of crashes, and whether
 *     it is for predictions.
 * @property pause Waits for the given number of milliseconds.
 * @property secrets The store of the client's secret.
 */
internal class ClientConfiguration(
    val server: String,
    val folder: File,
    val album: ExampleSource,
    val platform: Platform,
    val settings: ClientSettings,
    val transportOf: (secret: ByteArray, reporter: EventReporter) -> Transport = { secret, reporter ->
        HttpTransport(server, secret, settings.pins, settings.ca, settings.backoff) { reason, delayMs, attempt ->
            reporter.report(Event.Retrying(reason, delayMs, attempt))
        }
    },
    val engineOf: (Bundle, File, CrashLog, forPredictions: Boolean) -> Engine = { bundle, trials, crashes, predicts ->
        ProgramEngine(bundle, runtime(platform, settings.isolation, predicts), trials, crashes)
    },
    val pause: suspend (Long) -> Unit = { delay(it) },
    val secrets: SecretStore = settings.secrets ?: FileSecret(File(folder, "secret")),
) {
    /** The file of [Floors]. */
    val floors: File get() = platform.floors ?: File(folder, "floors.sqlite3")

    /** Delete the state of a closed client, as [FedLensClient.eraseHere]. */
    fun erase() {
        StateFolder.erase(folder, platform::openDatabase, secrets)
        Floors.eraseDamaged(floors, platform::openDatabase)
    }

    /** Open the trust in publishers; null if the server is trusted. */
    fun openTrust(): BundleTrust? =
        when (val publishers = settings.publishers) {
            is Publishers.Keys ->
                BundleTrust(
                    publishers.keys,
                    settings.audience + setOfNotNull(platform.applicationId),
                    Floors.open(floors, platform::openDatabase),
                )
            Publishers.TrustServer -> null
        }

    private companion object {
        fun runtime(
            platform: Platform,
            isolation: Isolation,
            predicts: Boolean,
        ): ProgramRuntime {
            if (isolation == Isolation.NONE) return platform.runtime
            val isRequired = isolation == Isolation.REQUIRED
            platform.separateRuntime(isRequired, forPredictions = predicts)?.let { return it }
            if (!isRequired) return platform.runtime
            throw EngineException(Reason.RUNTIME_MISSING, "there are no isolated processes here")
        }
    }
}

/** The open resources of a client. */
internal class ClientResources private constructor(
    val state: StateFolder,
    val transport: Transport,
    val journal: Journal,
    private val features: FeatureCache,
    private val trust: BundleTrust?,
    val assignments: Assignments,
    val predictor: Predictor,
    val loop: ClientLoop,
) : Closeable {
    /** Close everything; the folder is released even if some of it fails. */
    override fun close() {
        state.use { transport.use { features.use { trust.use { predictor.use { assignments.close() } } } } }
    }

    companion object {
        /**
         * Open the resources of a client.
         *
         * @throws StateException The folder cannot be used.
         * @throws TransportException The server's address cannot be trusted with the secret.
         */
        fun open(
            configuration: ClientConfiguration,
            worker: CoroutineDispatcher,
            predictions: CoroutineDispatcher,
            reporter: EventReporter,
        ): ClientResources {
            val settings = configuration.settings
            val opened = ArrayDeque<Closeable>()
            try {
                val state =
                    StateFolder.open(
                        configuration.folder,
                        configuration.server,
                        configuration.platform::openDatabase,
                        configuration.secrets,
                    )
                opened += state
                val transport = configuration.transportOf(state.secret, reporter).also { opened += it }
                val files = TensorFiles(state.tensorFolder)
                val clientState = StateTensors(state, files)
                val journal = Journal(state).also { it.giveUpWaiting() }
                val outbox = Outbox(state, files, clientState, journal)
                val cacheFolder = state.cacheFolder
                val features =
                    FeatureCache(
                        File(cacheFolder, "features.sqlite3"),
                        settings.maxCacheBytes,
                        configuration.platform::openDatabase,
                    ).also { opened += it }
                val trust = configuration.openTrust()?.also { opened += it }
                val crashes = Crashes(state)
                val cache = Cache(cacheFolder, settings.maxCacheBytes)
                val store = ModelStore(state, files, cache)
                val tried = File(cacheFolder, TRIED)
                val predictor =
                    Predictor(
                        transport,
                        cache,
                        features,
                        configuration.platform.decoder,
                        settings.policy,
                        trust,
                        { configuration.platform.hasUnmeteredNetwork },
                        engineOf = { configuration.engineOf(it, tried, crashes, true) },
                        predictions,
                        emit = reporter::report,
                        arrived = store::arrived,
                    )
                val assignments =
                    Assignments(
                        transport,
                        cache,
                        features,
                        files,
                        clientState,
                        outbox,
                        NoisyAnswers(state),
                        configuration.album,
                        configuration.platform.decoder,
                        settings.policy,
                        trust,
                        engineOf = { configuration.engineOf(it, tried, crashes, false) },
                        worker,
                        emit = reporter::report,
                    )
                val delivery = Delivery(transport, outbox, journal)
                val loop =
                    ClientLoop(
                        configuration,
                        state,
                        transport,
                        delivery,
                        assignments,
                        predictor,
                        store,
                        journal,
                        reporter,
                    )
                return ClientResources(state, transport, journal, features, trust, assignments, predictor, loop)
            } catch (failure: Throwable) {
                opened.asReversed().forEach { it.close() }
                throw failure
            }
        }

        // The folder in the cache with the marks of [org.fedlens.sdk.engine.Trials].
        private const val TRIED = "tried"
    }
}
