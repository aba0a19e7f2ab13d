package org.fedlens.sdk.training

import kotlinx.coroutines.CoroutineDispatcher
import kotlinx.coroutines.sync.Mutex
import kotlinx.coroutines.sync.withLock
import kotlinx.coroutines.withContext
import kotlinx.coroutines.withTimeoutOrNull
import org.fedlens.proto.v1.BlobSet
import org.fedlens.proto.v1.CurrentModel
import org.fedlens.proto.v1.LocalPlan
import org.fedlens.proto.v1.Manifest
import org.fedlens.sdk.Bundle
import org.fedlens.sdk.Event
import org.fedlens.sdk.Policy
import org.fedlens.sdk.StateException
import org.fedlens.sdk.TransportException
import org.fedlens.sdk.engine.Engine
import org.fedlens.sdk.net.Transport
import org.fedlens.sdk.photo.PhotoDecoder
import org.fedlens.sdk.store.Cache
import org.fedlens.sdk.store.Pins
import org.fedlens.sdk.store.StateTensors
import java.io.Closeable
import java.io.File

/**
 * Predictions by the current model, beside a training that may be under way: the engine and the thread are its own.
 *
 * A model that is not all here is fetched, but not over a metered network, and not for long if an earlier one is here.
 *
 * @param transport Source of parts and blobs.
 * @param cache Cache for them.
 * @property clientState Client state from earlier rounds.
 * @property decoder Decoder of photos.
 * @property currentPolicy Source of the policy, read anew for each use of a model.
 * @param trust Trust in publishers of bundles; null: the server is trusted.
 * @property hasUnmeteredNetwork True if there is a network that costs nothing.
 * @param engineOf Creates the engine of a bundle.
 * @property worker Dispatcher for reading photos and running programs, one thread at a time.
 * @param emit Receiver of events; must return quickly.
 *
 * Exceptions are those of [Assignments], and a [TransportException] with reason `NO_UNMETERED_NETWORK`.
 */
internal class Predictor(
    transport: Transport,
    cache: Cache,
    private val clientState: StateTensors,
    private val decoder: PhotoDecoder,
    private val currentPolicy: () -> Policy,
    trust: BundleTrust?,
    private val hasUnmeteredNetwork: () -> Boolean,
    engineOf: (Bundle) -> Engine,
    private val worker: CoroutineDispatcher,
    emit: (Event) -> Unit,
) : Closeable {
    private val opened = OpenBundle(trust, engineOf, worker)
    private val here = Fetching(cache, null, emit)
    private val anywhere = Fetching(cache, transport::fetch, emit)
    private val turn = Mutex()

    /**
     * The probability of each class, in label order.
     *
     * @param model The model that the server announced last.
     * @param earlier The last model known to have been all here; null: none.
     * @param onReady Called with the model that was used.
     * @throws org.fedlens.sdk.AssignmentException The model cannot be assembled from its sets.
     * @throws org.fedlens.sdk.PhotoException The photo cannot be decoded.
     * @throws java.io.IOException The photo cannot be read.
     */
    suspend fun predict(
        model: CurrentModel,
        photo: File,
        earlier: CurrentModel? = null,
        onReady: (CurrentModel) -> Unit = {},
    ): Map<String, Double> =
        turn.withLock {
            usable(model, earlier) { used, fetching ->
                val bundle = open(used, fetching)
                val plan = Requirements.assembling(used, bundle.manifest)
                opened.obtainParts(bundle, plan, fetching)
                try {
                    predict(bundle, plan, used, photo, fetching)
                } catch (_: StateException) {
                    // A result that was delivered meanwhile has replaced the client state.
                    predict(bundle, plan, used, photo, fetching)
                }.also { onReady(used) }
            }
        }

    /** Fetch what predictions by this model need, over any network. */
    suspend fun fetch(model: CurrentModel): Unit = turn.withLock { obtain(model) }

    /**
     * The manifest of this model's bundle, small enough for any network.
     *
     * @throws org.fedlens.sdk.AssignmentException The bundle cannot be used.
     */
    suspend fun manifest(model: CurrentModel): Manifest = turn.withLock { open(model, anywhere).manifest }

    override fun close() = opened.close()

    /** Use the model, or the earlier one if the model is neither here nor to be had soon. */
    private suspend fun <T> usable(
        model: CurrentModel,
        earlier: CurrentModel?,
        use: suspend (CurrentModel, Fetching) -> T,
    ): T {
        ifHere(model, use)?.let { return it.value }
        val isFree = hasUnmeteredNetwork()
        if (earlier != null && earlier != model) {
            if (isFree) {
                try {
                    withTimeoutOrNull(PATIENCE_MS) { obtain(model) }
                } catch (_: TransportException) {
                    // No network, or the round has passed and its blobs are gone.
                }
                ifHere(model, use)?.let { return it.value }
            }
            ifHere(earlier, use)?.let { return it.value }
        }
        if (isFree) return use(model, anywhere)
        throw TransportException(
            TransportException.Reason.NO_UNMETERED_NETWORK,
            "the model is not on this device yet, and there is no unmetered network; fetchModel() takes any network",
        )
    }

    private suspend fun obtain(model: CurrentModel) {
        val bundle = open(model, anywhere)
        val plan = Requirements.assembling(model, bundle.manifest)
        opened.obtainParts(bundle, plan, anywhere)
        Pins().use { anywhere.sets(sets(plan, model, bundle.manifest).values, it) }
    }

    private suspend fun <T> ifHere(
        model: CurrentModel,
        use: suspend (CurrentModel, Fetching) -> T,
    ): Found<T>? =
        try {
            Found(use(model, here))
        } catch (_: NotHere) {
            null
        }

    private suspend fun open(
        model: CurrentModel,
        fetching: Fetching,
    ): Bundle = opened.open(model.bundle, model.statement, trains = false, currentPolicy(), fetching)

    private suspend fun predict(
        bundle: Bundle,
        plan: LocalPlan,
        model: CurrentModel,
        photo: File,
        fetching: Fetching,
    ): Map<String, Double> {
        val sets = sets(plan, model, bundle.manifest)
        return Pins().use { pins ->
            fetching.sets(sets.values, pins)
            withContext(worker) {
                val tensors = sets.mapValues { (_, entry) -> fetching.read(entry).tensors }
                val weights = Sources(tensors, stateOf(model)).assemble(plan.getInstructions(0), bundle.manifest)
                val extractors = plan.extractorsList.map(tensors::get)
                Prediction.predict(opened.engine(bundle), weights, decoder, photo, extractors)
            }
        }
    }

    private suspend fun sets(
        plan: LocalPlan,
        model: CurrentModel,
        manifest: Manifest,
    ): Map<String, BlobSet> =
        withContext(worker) {
            val names = Sources.needed(plan, manifest, stateOf(model))
            Sources.available(model.setsList, manifest).filterKeys { it in names }
        }

    private fun stateOf(model: CurrentModel) = { name: String -> clientState.current(model.task, name)?.tensors }

    private class Found<T>(
        val value: T,
    )

    private companion object {
        /** The longest wait for a newer model while an earlier one is here. */
        const val PATIENCE_MS = 2_000L
    }
}
