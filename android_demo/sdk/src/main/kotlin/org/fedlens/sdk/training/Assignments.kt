package org.fedlens.sdk.training

import kotlinx.coroutines.CoroutineDispatcher
import kotlinx.coroutines.currentCoroutineContext
import kotlinx.coroutines.sync.Mutex
import kotlinx.coroutines.sync.withLock
import kotlinx.coroutines.withContext
import org.fedlens.proto.v1.Assignment
import org.fedlens.proto.v1.BlobSet
import org.fedlens.proto.v1.CurrentModel
import org.fedlens.proto.v1.Dtype
import org.fedlens.proto.v1.LocalPlan
import org.fedlens.proto.v1.Manifest
import org.fedlens.proto.v1.Upload
import org.fedlens.sdk.AssignmentException
import org.fedlens.sdk.AssignmentException.Reason
import org.fedlens.sdk.BlobException
import org.fedlens.sdk.Bundle
import org.fedlens.sdk.Event
import org.fedlens.sdk.Policy
import org.fedlens.sdk.album.ExampleSource
import org.fedlens.sdk.blob.BlobWriter
import org.fedlens.sdk.blob.Differences
import org.fedlens.sdk.engine.Engine
import org.fedlens.sdk.net.Transport
import org.fedlens.sdk.photo.PhotoDecoder
import org.fedlens.sdk.store.Cache
import org.fedlens.sdk.store.FeatureCache
import org.fedlens.sdk.store.NoisyAnswers
import org.fedlens.sdk.store.Outbox
import org.fedlens.sdk.store.Pins
import org.fedlens.sdk.store.Result
import org.fedlens.sdk.store.StateTensors
import org.fedlens.sdk.store.StoredBlob
import org.fedlens.sdk.store.TensorFiles
import java.io.Closeable

/**
 * The execution of assignments, up to a result in the outbox: fetching, reading the album, training, storing. One
 * assignment runs at a time; the engine of the last bundle is kept for the next one.
 *
 * @param transport Source of parts and blobs.
 * @param cache Cache for them.
 * @property features Cached features of photos.
 * @property files Storage for large tensors.
 * @property clientState Client state from earlier rounds.
 * @property outbox Outbox for results.
 * @property noisyAnswers Noisy answers given earlier.
 * @property album The photos.
 * @property decoder Decoder of photos.
 * @property currentPolicy Source of the policy, read anew for each assignment, and again before its result is stored.
 * @param trust Trust in publishers of bundles; null: the server is trusted.
 * @param engineOf Creates the engine of a bundle.
 * @property worker Dispatcher for reading photos and training, one thread at a time.
 * @property emit Receiver of events, on the worker's thread or the caller's; must return quickly.
 * @property nanoTime A monotonic clock, in nanoseconds.
 *
 * Every call may also throw
 * - [org.fedlens.sdk.TransportException]: the server does not provide what is needed,
 * - [org.fedlens.sdk.StateException]: the client's folder cannot be used,
 * - [org.fedlens.sdk.EngineException]: a program could not be run, or gave a NaN.
 */
internal class Assignments(
    transport: Transport,
    cache: Cache,
    private val features: FeatureCache,
    private val files: TensorFiles,
    private val clientState: StateTensors,
    private val outbox: Outbox,
    private val noisyAnswers: NoisyAnswers,
    private val album: ExampleSource,
    private val decoder: PhotoDecoder,
    private val currentPolicy: () -> Policy,
    trust: BundleTrust?,
    engineOf: (Bundle) -> Engine,
    private val worker: CoroutineDispatcher,
    private val emit: (Event) -> Unit,
    private val nanoTime: () -> Long = System::nanoTime,
) : Closeable {
    private val fetching = Fetching(cache, transport::fetch, emit)
    private val opened = OpenBundle(trust, engineOf, worker)
    private val turn = Mutex()

    /**
     * Compute the result of an assignment and store it in the outbox.
     *
     * @param onlyTest True if all photos are test photos, as for an evaluator.
     * @throws AssignmentException The assignment cannot be carried out.
     */
    suspend fun carryOut(
        assignment: Assignment,
        onlyTest: Boolean,
    ): Result {
        val policy = currentPolicy()
        Requirements.checkPolicy(assignment, policy)
        return turn.withLock {
            val bundle = opened.open(assignment.bundle, assignment.statement, trains = true, policy, fetching)
            Requirements.check(assignment, bundle.manifest, policy)
            val plan = assignment.localPlan
            val sets =
                withContext(worker) {
                    Requirements.checkEarlierAnswers(plan, bundle.manifest, noisyAnswers, policy)
                    needed(plan, assignment.task, assignment.setsList, bundle.manifest)
                }
            opened.obtainParts(bundle, plan, fetching)
            // Held until the result is stored, because a delta is computed from its base then.
            Pins().use { pins ->
                fetching.sets(sets.values, pins)
                withContext(worker) {
                    val progress = Progress(currentCoroutineContext(), nanoTime, emit)
                    store(assignment, bundle.manifest, sets, compute(assignment, bundle, sets, onlyTest, progress))
                }
            }
        }
    }

    /**
     * Embed new photos of the album for the bundle of this model; wait for a training that is under way.
     *
     * @param onlyTest See [carryOut].
     * @return The number of photos embedded.
     * @throws AssignmentException The bundle cannot be used.
     */
    suspend fun embedNew(
        model: CurrentModel,
        onlyTest: Boolean,
    ): Int =
        turn.withLock {
            val bundle = opened.open(model.bundle, model.statement, trains = false, currentPolicy(), fetching)
            opened.obtainParts(bundle, LocalPlan.getDefaultInstance(), fetching)
            withContext(worker) {
                val progress = Progress(currentCoroutineContext(), nanoTime, emit)
                preparation(bundle, onlyTest, progress).embed()
            }
        }

    /** Close the bundle and its engine. No call may be under way. */
    override fun close() = opened.close()

    /** Run the part of an assignment that needs the photos. */
    private fun compute(
        assignment: Assignment,
        bundle: Bundle,
        sets: Map<String, BlobSet>,
        onlyTest: Boolean,
        progress: Progress,
    ): TrainingResult {
        val plan = assignment.localPlan
        val (task, round) = assignment.task to assignment.round
        val engine = opened.engine(bundle)
        var photos = preparation(bundle, onlyTest, progress).photos(assignment.seed.toByteArray())
        if (plan.extractorsCount > 0) {
            val extractors =
                plan.extractorsList.map { name ->
                    sets[name]?.let { entry -> Extractor(entry.sha256.toByteArray()) { fetching.read(entry).tensors } }
                }
            photos = Extracted(engine, features, progress::check).sideBySide(photos, extractors)
        }
        if (photos.skipped.isNotEmpty()) progress.report(isLast = true) { Event.PhotosSkipped(photos.skipped) }
        progress.report(isLast = true) { Event.RoundStarted(task, round, photos.train.size, photos.test.size) }
        return LocalTraining(
            assignment,
            engine,
            photos,
            downloads(plan, sets),
            stateOf(task),
            { photos, validation -> permit(assignment, bundle, photos, validation) },
        ) { step, steps, loss ->
            progress.report(isLast = step == steps) { Event.Trained(task, round, step, steps, loss) }
        }.execute()
    }

    /** Refuse what the owner forbids by now: a permission that was taken back holds for this result, too. */
    private fun permit(
        assignment: Assignment,
        bundle: Bundle,
        photos: Int,
        validation: Int,
    ) {
        val policy = currentPolicy()
        val plan = assignment.localPlan
        val manifest = bundle.manifest
        Requirements.checkPolicy(assignment, policy)
        Requirements.check(assignment, manifest, policy)
        Requirements.checkEarlierAnswers(plan, manifest, noisyAnswers, policy)
        Requirements.checkAmounts(plan, manifest, photos, validation, policy)
    }

    private fun preparation(
        bundle: Bundle,
        onlyTest: Boolean,
        progress: Progress,
    ) = Preparation(album.examples(), opened.engine(bundle), decoder, features, onlyTest) { done, total ->
        progress.report(isLast = done == total) { Event.Embedded(done, total) }
    }

    /** The sets to fetch, by name: those of [given] and the initial weights that the plan reads. */
    private fun needed(
        plan: LocalPlan,
        task: Long,
        given: List<BlobSet>,
        manifest: Manifest,
    ): Map<String, BlobSet> {
        val names = Sources.needed(plan, manifest, stateOf(task))
        return Sources.available(given, manifest).filterKeys { it in names }
    }

    /** The tensors of these sets, by name, except extractors, which are read when they run. */
    private fun downloads(
        plan: LocalPlan,
        sets: Map<String, BlobSet>,
    ): Map<String, Tensors> =
        sets.filterKeys { it !in plan.extractorsList }.mapValues { (_, entry) -> fetching.read(entry).tensors }

    private fun stateOf(task: Long): (String) -> Tensors? = { name -> clientState.current(task, name)?.tensors }

    /** Store tensors first, then the row that names them. */
    private fun store(
        assignment: Assignment,
        manifest: Manifest,
        sets: Map<String, BlobSet>,
        result: TrainingResult,
    ): Result {
        val plan = assignment.localPlan
        val uploads: Map<String, StoredBlob>
        val keeps: Map<String, StoredBlob>
        try {
            uploads = plan.uploadsList.associate { it.name to storeUpload(it, sets, result.uploads.getValue(it.name)) }
            keeps = result.keeps.mapValues { (_, tensors) -> files.store(tensors, Dtype.DTYPE_FLOAT32) }
        } catch (error: BlobException) {
            throw AssignmentException(Reason.NON_FINITE, error.message.orEmpty(), error)
        }
        val header = Header.compose(assignment, manifest, result, uploads, noisyAnswers)
        return outbox.put(assignment, header, uploads.values.toList(), keeps)
    }

    /** Store an upload: tensors, or their delta to a set. */
    private fun storeUpload(
        upload: Upload,
        sets: Map<String, BlobSet>,
        tensors: Tensors,
    ): StoredBlob {
        val floats = checkNotNull(BlobWriter.floatsOf(upload.codec)) { "checked before" }
        if (upload.base.isEmpty()) return files.store(tensors, floats)
        val base = fetching.read(sets.getValue(upload.base))
        val unfit = tensors.keys.firstOrNull { base.tensors[it]?.shape != tensors.getValue(it).shape }
        if (unfit != null) {
            val message = "set '${upload.base}', the base of the upload, lacks '$unfit'"
            throw AssignmentException(Reason.UNSUPPORTED, message)
        }
        return files.store(Differences.subtract(tensors, base.tensors), floats, base.digest)
    }
}
