package org.fedlens.sdk.pass

import com.google.protobuf.ByteString
import kotlinx.coroutines.currentCoroutineContext
import kotlinx.coroutines.sync.Mutex
import kotlinx.coroutines.sync.withLock
import kotlinx.coroutines.withContext
import org.fedlens.proto.v1.Assignment
import org.fedlens.proto.v1.BlobSet
import org.fedlens.proto.v1.CurrentModel
import org.fedlens.proto.v1.Dtype
import org.fedlens.proto.v1.LocalPass
import org.fedlens.proto.v1.Manifest
import org.fedlens.proto.v1.SetSource
import org.fedlens.proto.v1.StartRule
import org.fedlens.proto.v1.TensorSelector
import org.fedlens.proto.v1.Upload
import org.fedlens.sdk.BlobException
import org.fedlens.sdk.Bundle
import org.fedlens.sdk.Event
import org.fedlens.sdk.Manifests
import org.fedlens.sdk.PassException
import org.fedlens.sdk.PassException.Reason
import org.fedlens.sdk.Policy
import org.fedlens.sdk.blob.BlobWriter
import org.fedlens.sdk.blob.Differences
import org.fedlens.sdk.engine.Engine
import org.fedlens.sdk.store.Pins
import org.fedlens.sdk.store.Result
import org.fedlens.sdk.store.StoredBlob
import java.io.Closeable
import java.io.File

/**
 * From an assignment to a result in the outbox: fetches what is missing, reads the album, trains and stores, for one
 * client, one thing after the other. The engine of the last bundle is kept for the next assignment.
 *
 * Every call throws, besides what it says,
 * - [org.fedlens.sdk.TransportException]: the server does not give what is needed,
 * - [org.fedlens.sdk.StateException]: the client's folder cannot be used,
 * - [org.fedlens.sdk.EngineException]: a program could not be run, or gave a NaN.
 */
internal class Assignments(
    private val desk: Desk,
) : Closeable {
    private val fetching = Fetching(desk.cache, desk.transport, desk.emit)
    private val turn = Mutex()
    private var bundle: Bundle? = null
    private var engine: Engine? = null
    private var parts: Pins? = null

    // Digests of what `parts` keeps in the cache.
    private val held = HashSet<ByteString>()

    /**
     * Computes the result of an assignment; it is in the outbox when this returns.
     *
     * @param onlyTest All photos are test photos, as for an evaluator.
     * @throws PassException It cannot be carried out.
     */
    suspend fun carryOut(
        assignment: Assignment,
        onlyTest: Boolean,
    ): Result {
        val policy = desk.policy()
        Requirements.checkPolicy(assignment, policy)
        return turn.withLock {
            val bundle = open(assignment.bundle.toByteArray(), policy)
            Requirements.check(assignment, bundle.manifest)
            val plan = assignment.localPass
            val sets =
                withContext(desk.worker) {
                    Requirements.checkEarlierAnswers(plan, bundle.manifest, desk.answers, policy)
                    needed(plan, assignment.task, assignment.setsList, bundle.manifest)
                }
            val stages = plan.stagesList + plan.evaluation.throwAwayList
            obtainPrograms(bundle, stages.mapTo(HashSet()) { it.program })
            // The base of a difference is read while the result is stored.
            Pins().use { pins ->
                fetching.sets(sets.values, pins)
                withContext(desk.worker) {
                    val progress = Progress(currentCoroutineContext(), desk.nanoTime, desk.emit)
                    store(assignment, bundle.manifest, sets, compute(assignment, bundle, sets, onlyTest, progress))
                }
            }
        }
    }

    /**
     * The probability of each class, in label order, with what the client's next pass would start from; waits for one
     * that is under way.
     *
     * @throws PassException The model cannot be put together from its sets.
     * @throws org.fedlens.sdk.PhotoException The photo cannot be decoded.
     * @throws java.io.IOException It cannot be read.
     */
    suspend fun predict(
        model: CurrentModel,
        photo: File,
    ): Map<String, Double> =
        turn.withLock {
            val bundle = open(model.bundle.toByteArray())
            obtainPrograms(bundle, emptySet())
            val (last, sets) =
                withContext(desk.worker) {
                    val last = lastPass(model, bundle.manifest)
                    last to
                        if (last == null) {
                            model.setsList.associateBy { it.name }
                        } else {
                            needed(last, model.task, model.setsList, bundle.manifest)
                        }
                }
            Pins().use { pins ->
                fetching.sets(sets.values, pins)
                withContext(desk.worker) {
                    val engine = load(bundle)
                    val downloads = downloads(last ?: LocalPass.getDefaultInstance(), sets)
                    val plan = last ?: startingFrom(downloads, bundle.manifest)
                    val sources = Sources(bundle.manifest, downloads, kept(model.task))
                    val extractors = plan.extractorsList.map { name -> sets[name]?.let { fetching.read(it).tensors } }
                    Prediction.predict(engine, sources.start(plan.startList), desk.decoder, photo, extractors)
                }
            }
        }

    /**
     * Embeds the photos of the album that are not yet, for the bundle of this digest; waits for a pass that is under
     * way.
     *
     * @param onlyTest As in [carryOut].
     * @return How many photos that were.
     * @throws PassException The bundle cannot be used.
     */
    suspend fun embedNew(
        digest: ByteArray,
        onlyTest: Boolean,
    ): Int =
        turn.withLock {
            val bundle = open(digest)
            obtainPrograms(bundle, emptySet())
            withContext(desk.worker) {
                val progress = Progress(currentCoroutineContext(), desk.nanoTime, desk.emit)
                preparation(bundle, onlyTest, progress).embed()
            }
        }

    /**
     * The names of the classes, in label order, of the bundle with this digest.
     *
     * @throws PassException The bundle cannot be used.
     */
    suspend fun classNames(digest: ByteArray): List<String> = turn.withLock { open(digest).manifest.classNamesList }

    /** Lets go of the bundle. Nothing may be under way. */
    override fun close() {
        engine?.close()
        engine = null
        parts?.close()
        parts = null
        held.clear()
        bundle = null
    }

    private suspend fun open(
        digest: ByteArray,
        policy: Policy = desk.policy(),
    ): Bundle {
        Requirements.checkPinned(digest, policy)
        bundle?.let { if (it.id.contentEquals(digest)) return it }
        withContext(desk.worker) { close() }
        val opened = fetching.bundle(digest)
        Requirements.checkBundle(opened.manifest)
        bundle = opened
        return opened
    }

    /** Has what these programs need, and what every pass needs. */
    private suspend fun obtainPrograms(
        bundle: Bundle,
        stages: Set<String>,
    ) {
        val pins = parts ?: Pins().also { parts = it }
        fetching.programs(bundle, stages + EVERY_PASS, pins, held)
    }

    /** What the photos are needed for. */
    private fun compute(
        assignment: Assignment,
        bundle: Bundle,
        sets: Map<String, BlobSet>,
        onlyTest: Boolean,
        progress: Progress,
    ): PassResult {
        val plan = assignment.localPass
        val (task, round) = assignment.task to assignment.round
        val engine = load(bundle)
        var photos = preparation(bundle, onlyTest, progress).photos(assignment.seed.toByteArray())
        if (plan.extractorsCount > 0) {
            val extractors =
                plan.extractorsList.map { name ->
                    sets[name]?.let { entry -> Extractor(entry.sha256.toByteArray()) { fetching.read(entry).tensors } }
                }
            photos = Extracted(engine, desk.features, progress::check).sideBySide(photos, extractors)
        }
        if (photos.skipped.isNotEmpty()) progress.tell(isLast = true) { Event.PhotosSkipped(photos.skipped) }
        progress.tell(isLast = true) { Event.RoundStarted(task, round, photos.train.size, photos.test.size) }
        return PassRun(assignment, engine, photos, downloads(plan, sets), kept(task)) { step, steps, loss ->
            progress.tell(isLast = step == steps) { Event.Trained(task, round, step, steps, loss) }
        }.execute()
    }

    private fun preparation(
        bundle: Bundle,
        onlyTest: Boolean,
        progress: Progress,
    ) = Preparation(desk.album.photos(), load(bundle), desk.decoder, desk.features, onlyTest) { done, total ->
        progress.tell(isLast = done == total) { Event.Embedded(done, total) }
    }

    /** How the last pass started, if the next one will start so: the downloads are not of another phase. */
    private fun lastPass(
        model: CurrentModel,
        manifest: Manifest,
    ): LocalPass? {
        val names = model.setsList.map { it.name }
        return desk.kept.startRules(model.task)?.takeIf { last ->
            val wanted = Sources.needed(last, manifest, kept(model.task)) - last.extractorsList.toSet()
            names.containsAll(wanted - Manifests.INITIAL)
        }
    }

    /** Takes each tensor from the first set that has it; from the initial weights only what is nowhere else. */
    private fun startingFrom(
        sets: Map<String, Tensors>,
        manifest: Manifest,
    ): LocalPass {
        val plan = LocalPass.newBuilder()
        for ((set, tensors) in sets.entries.sortedBy { it.key == Manifests.INITIAL }) {
            val exchangeable = manifest.tensorsList.map { it.name }.filter { it in tensors }
            // A rule without names would select every tensor.
            if (exchangeable.isEmpty()) continue
            plan.addStart(
                StartRule
                    .newBuilder()
                    .setTensors(TensorSelector.newBuilder().addAllNames(exchangeable))
                    .setSource(SetSource.newBuilder().setDownload(set)),
            )
        }
        return plan.build()
    }

    /** The sets to fetch, by name; of [given] and the initial weights those that are read. */
    private fun needed(
        plan: LocalPass,
        task: Long,
        given: List<BlobSet>,
        manifest: Manifest,
    ): Map<String, BlobSet> {
        val names = Sources.needed(plan, manifest, kept(task))
        return Sources.available(given, manifest).filterKeys { it in names }
    }

    /** The tensors of these sets by name; not those of extractors, which are read when they are run. */
    private fun downloads(
        plan: LocalPass,
        sets: Map<String, BlobSet>,
    ): Map<String, Tensors> =
        sets.filterKeys { it !in plan.extractorsList }.mapValues { (_, entry) -> fetching.read(entry).tensors }

    private fun kept(task: Long): (String) -> Tensors? = { name -> desk.kept.current(task, name)?.tensors }

    private fun load(bundle: Bundle): Engine = engine ?: desk.engineOf(bundle).also { engine = it }

    /** Tensors first, then the row that names them. */
    private fun store(
        assignment: Assignment,
        manifest: Manifest,
        sets: Map<String, BlobSet>,
        result: PassResult,
    ): Result {
        val plan = assignment.localPass
        val upload: StoredBlob?
        val keep: Map<String, StoredBlob>
        try {
            upload = result.upload?.let { storeUpload(plan.upload, sets, it) }
            keep = result.keep.mapValues { (_, tensors) -> desk.files.store(tensors, Dtype.DTYPE_FLOAT32) }
        } catch (error: BlobException) {
            throw PassException(Reason.NON_FINITE, error.message.orEmpty(), error)
        }
        val header = Header.compose(assignment, manifest, result, upload, desk.answers)
        return desk.outbox.put(assignment, header, upload, keep)
    }

    /** Stores what is uploaded of the trained tensors: themselves, or their difference to a set. */
    private fun storeUpload(
        upload: Upload,
        sets: Map<String, BlobSet>,
        trained: Tensors,
    ): StoredBlob {
        val floats = checkNotNull(BlobWriter.floatsOf(upload.codec)) { "checked before" }
        if (upload.baseSet.isEmpty()) return desk.files.store(trained, floats)
        val base = fetching.read(sets.getValue(upload.baseSet))
        val unfit = trained.keys.firstOrNull { base.tensors[it]?.shape != trained.getValue(it).shape }
        if (unfit != null) {
            val message = "set '${upload.baseSet}', the base of the upload, lacks '$unfit'"
            throw PassException(Reason.UNSUPPORTED, message)
        }
        return desk.files.store(Differences.subtract(trained, base.tensors), floats, base.digest)
    }

    private companion object {
        /** Programs that are needed whatever the stages are, as far as the bundle has them. */
        val EVERY_PASS = setOf("embed", "extract", "predict", "view")
    }
}
