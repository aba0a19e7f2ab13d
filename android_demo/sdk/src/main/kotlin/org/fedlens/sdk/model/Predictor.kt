package org.fedlens.sdk.model

import com.google.protobuf.ByteString
import kotlinx.coroutines.CoroutineDispatcher
import kotlinx.coroutines.currentCoroutineContext
import kotlinx.coroutines.ensureActive
import kotlinx.coroutines.sync.Mutex
import kotlinx.coroutines.sync.withLock
import kotlinx.coroutines.withContext
import kotlinx.coroutines.withTimeoutOrNull
import org.fedlens.proto.v1.BlobSet
import org.fedlens.proto.v1.CurrentModel
import org.fedlens.proto.v1.Manifest
import org.fedlens.sdk.AlbumEntry
import org.fedlens.sdk.Bundle
import org.fedlens.sdk.Evaluation
import org.fedlens.sdk.Event
import org.fedlens.sdk.Policy
import org.fedlens.sdk.TransportException
import org.fedlens.sdk.album.Examples
import org.fedlens.sdk.blob.Tensor
import org.fedlens.sdk.engine.Engine
import org.fedlens.sdk.net.Transport
import org.fedlens.sdk.photo.PhotoDecoder
import org.fedlens.sdk.store.Cache
import org.fedlens.sdk.store.FeatureCache
import org.fedlens.sdk.store.Pins
import org.fedlens.sdk.training.BundleTrust
import org.fedlens.sdk.training.Extracted
import org.fedlens.sdk.training.Extractor
import org.fedlens.sdk.training.Fetching
import org.fedlens.sdk.training.NotHere
import org.fedlens.sdk.training.OpenBundle
import org.fedlens.sdk.training.PhotoReader
import org.fedlens.sdk.training.PhotoSet
import org.fedlens.sdk.training.Preparation
import org.fedlens.sdk.training.Requirements
import org.fedlens.sdk.training.Sources
import org.fedlens.sdk.training.assemble
import java.io.Closeable
import java.io.File

/**
 * Predictions and tests of models, beside a training that may be under way: the engine and the thread are its own.
 *
 * A model that is not all here is fetched, but not over a metered network, and not for long if another one is here.
 *
 * @property transport Source of parts and blobs.
 * @param cache Cache for them.
 * @property features Cached features of photos.
 * @property decoder Decoder of photos.
 * @property currentPolicy Source of the policy, read anew for each use of a model.
 * @param trust Trust in publishers of bundles; null: the server is trusted.
 * @property hasUnmeteredNetwork True if there is a network that costs nothing.
 * @param engineOf Creates the engine of a bundle.
 * @property worker Dispatcher for reading photos and running programs, one thread at a time.
 * @param emit Receiver of events; must return quickly.
 * @property arrived Called when all that a version is made of is in the cache, with the digests.
 *
 * Exceptions are those of [org.fedlens.sdk.training.Assignments], and a [TransportException] with reason
 * `NO_UNMETERED_NETWORK`.
 */
internal class Predictor(
    private val transport: Transport,
    cache: Cache,
    private val features: FeatureCache,
    private val decoder: PhotoDecoder,
    private val currentPolicy: () -> Policy,
    trust: BundleTrust?,
    private val hasUnmeteredNetwork: () -> Boolean,
    engineOf: (Bundle) -> Engine,
    private val worker: CoroutineDispatcher,
    emit: (Event) -> Unit,
    private val arrived: (Version, Set<ByteString>) -> Unit,
) : Closeable {
    private val opened = OpenBundle(trust, engineOf, worker)
    private val here = Fetching(cache, null, emit)
    private val anywhere = Fetching(cache, transport::fetch, emit)
    private val unmetered = Fetching(cache, ::fetchUnmetered, emit)
    private val turn = Mutex()

    /**
     * The probability of each class, in label order, and the version that gave it.
     *
     * @param wanted The version to use.
     * @param input The features to predict from.
     * @param other The version to use if [wanted] is neither here nor to be had soon; null: none.
     * @throws org.fedlens.sdk.AssignmentException The model cannot be assembled from its sets.
     * @throws org.fedlens.sdk.PhotoException The photo cannot be decoded.
     * @throws java.io.IOException The photo cannot be read.
     */
    suspend fun predict(
        wanted: Version,
        input: PhotoReader.() -> FloatArray,
        other: Version? = null,
    ): Pair<Map<String, Double>, Version> =
        turn.withLock {
            usable(wanted, other) { used, fetching ->
                using(used, fetching) { model ->
                    val extractors = model.extractors.map { it?.read?.invoke() }
                    Prediction.predict(model.engine, model.weights, decoder, input, extractors)
                } to used
            }
        }

    /**
     * The predicted class of each test photo of a class that the model knows, without photos that cannot be read.
     *
     * @param version A version that is here.
     * @param onlyTest True if all photos are test photos, as for an evaluator.
     * @throws NotHere It is not here any more.
     */
    suspend fun test(
        version: Version,
        photos: Examples,
        onlyTest: Boolean,
    ): Map<AlbumEntry, String> =
        turn.withLock {
            val context = currentCoroutineContext()
            using(version, here) { model ->
                val classes = model.bundle.manifest.classNamesList
                val preparation =
                    Preparation(photos, model.engine, decoder, features, onlyTest) { _, _ -> context.ensureActive() }
                val test = model.inputs(preparation.test()) { context.ensureActive() }
                val rows = test.rows.inputs
                val logits = if (test.size == 0) rows else model.engine.predict(model.weights, rows)
                test.entries.indices.associate { row ->
                    test.entries[row] to classes[Evaluation.predicted(logits, row, classes.size)]
                }
            }
        }

    /** Make sure that predictions by this version can be made; failures as [predict]. */
    suspend fun ready(version: Version): Unit =
        turn.withLock { usable(version, null) { used, fetching -> using(used, fetching) { } } }

    /** Fetch what predictions by this version need, over any network. */
    suspend fun fetch(version: Version): Unit = turn.withLock { using(version, anywhere) { } }

    /** True if all that this version is made of is here, or if [mayFetch] comes soon over an unmetered network. */
    suspend fun obtain(
        version: Version,
        mayFetch: Boolean,
    ): Boolean = turn.withLock { isHere(version) || (mayFetch && hasUnmeteredNetwork() && comesSoon(version)) }

    /** Delete the features of photos that are gone; wait for a test, which could store them anew. */
    suspend fun dropFeatures(photos: Collection<ByteString>): Unit = turn.withLock { features.forget(photos) }

    /**
     * The manifest of this model's bundle, small enough for any network.
     *
     * @throws org.fedlens.sdk.AssignmentException The bundle cannot be used.
     */
    suspend fun manifest(model: CurrentModel): Manifest = turn.withLock { open(model, anywhere).manifest }

    /** The names of the classes of this model; empty if its manifest is not here. */
    suspend fun knownClassNames(model: CurrentModel): List<String> =
        try {
            here.bundle(model.bundle.toByteArray()).manifest.classNamesList
        } catch (_: NotHere) {
            emptyList()
        }

    override fun close() = opened.close()

    /** Use a version, or the other one if the first is neither here nor to be had soon. */
    private suspend fun <T> usable(
        wanted: Version,
        other: Version?,
        use: suspend (Version, Fetching) -> T,
    ): T {
        ifHere(wanted, use)?.let { return it.value }
        val isFree = hasUnmeteredNetwork()
        if (other != null) {
            if (isFree && comesSoon(wanted)) ifHere(wanted, use)?.let { return it.value }
            ifHere(other, use)?.let { return it.value }
        }
        if (isFree) return use(wanted, unmetered)
        throw noUnmeteredNetwork()
    }

    private suspend fun fetchUnmetered(
        sha256: ByteArray,
        into: File,
        maxBytes: Long,
    ) = transport.fetchChecked(sha256, into, maxBytes) {
        // Each time: attempts may go on for hours, in which a phone leaves its Wi-Fi.
        if (!hasUnmeteredNetwork()) throw noUnmeteredNetwork()
    }

    private fun noUnmeteredNetwork() =
        TransportException(
            TransportException.Reason.NO_UNMETERED_NETWORK,
            "the model is not on this device yet, and there is no unmetered network; fetchModel() takes any network",
        )

    private suspend fun isHere(version: Version): Boolean =
        ifHere(version) { used, fetching -> using(used, fetching) { } } != null

    private suspend fun comesSoon(version: Version): Boolean =
        try {
            withTimeoutOrNull(PATIENCE_MS) { using(version, unmetered) { } } != null
        } catch (_: TransportException) {
            // No network, or the round has passed and its blobs are gone.
            false
        }

    private suspend fun <T> ifHere(
        version: Version,
        use: suspend (Version, Fetching) -> T,
    ): Found<T>? =
        try {
            Found(use(version, here))
        } catch (_: NotHere) {
            null
        }

    private suspend fun open(
        model: CurrentModel,
        fetching: Fetching,
    ): Bundle = opened.open(model.bundle, model.statement, trains = false, currentPolicy(), fetching)

    /** Run [work] with a model, all of which is here meanwhile. */
    private suspend fun <T> using(
        version: Version,
        fetching: Fetching,
        work: (Loaded) -> T,
    ): T {
        val model = version.announced
        val bundle = open(model, fetching)
        val plan = Requirements.assembling(model, bundle.manifest)
        val parts = opened.obtainParts(bundle, plan, fetching)
        val sets =
            withContext(worker) {
                val names = Sources.needed(plan, bundle.manifest, version.state)
                Sources.available(model.setsList, bundle.manifest).filterKeys { it in names }
            }
        return Pins().use { pins ->
            fetching.sets(sets.values, pins)
            arrived(version, parts + setOf(model.bundle) + sets.values.map { it.sha256 })
            withContext(worker) { work(Loaded(version, bundle, sets)) }
        }
    }

    /** A model in use. */
    private inner class Loaded(
        version: Version,
        val bundle: Bundle,
        private val sets: Map<String, BlobSet>,
    ) {
        private val plan = Requirements.assembling(version.announced, bundle.manifest)
        val engine: Engine by lazy { opened.engine(bundle) }
        val weights: Map<String, Tensor> by lazy {
            Sources(sets.mapValues { (_, set) -> here.read(set).tensors }, version.state)
                .assemble(plan.getInstructions(0), bundle.manifest)
        }

        /** The extractors of a concatenated model, null for an absent one. */
        val extractors: List<Extractor?> =
            plan.extractorsList.map { name ->
                sets[name]?.let { Extractor(it.sha256.toByteArray()) { here.read(it).tensors } }
            }

        /** The rows of photos for the program that predicts. */
        fun inputs(
            photos: PhotoSet,
            check: () -> Unit,
        ): PhotoSet =
            if (extractors.isEmpty()) {
                photos
            } else {
                Extracted(engine, features, check).sideBySide(listOf(photos), extractors).single()
            }
    }

    private class Found<T>(
        val value: T,
    )

    private companion object {
        /** The longest wait for the wanted version while another one is here. */
        const val PATIENCE_MS = 2_000L
    }
}
