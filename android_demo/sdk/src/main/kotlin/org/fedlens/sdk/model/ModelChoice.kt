package org.fedlens.sdk.model

import com.google.protobuf.ByteString
import org.fedlens.proto.v1.CurrentModel
import org.fedlens.sdk.AlbumEntry
import org.fedlens.sdk.AssignmentException
import org.fedlens.sdk.AssignmentException.Reason
import org.fedlens.sdk.Event
import org.fedlens.sdk.FedLensException
import org.fedlens.sdk.StateException
import org.fedlens.sdk.album.Example
import org.fedlens.sdk.album.ExampleSource
import org.fedlens.sdk.album.Examples
import org.fedlens.sdk.sha256
import org.fedlens.sdk.training.NotHere
import org.fedlens.sdk.training.PhotoReader

/**
 * The choice among the models of this phone: which one predicts, and when a newer one takes its place. Rounds do not
 * ask it, so nothing that is sent depends on it.
 *
 * @property onlyTest True if all photos are test photos, as for an evaluator.
 * @property emit Receiver of events; must return quickly.
 */
internal class ModelChoice(
    private val store: ModelStore,
    private val predictor: Predictor,
    private val album: ExampleSource,
    private val adoption: Adoption,
    private val onlyTest: () -> Boolean,
    private val emit: (Event) -> Unit,
) {
    /** See [org.fedlens.sdk.FedLensClient.predict]. */
    suspend fun predict(
        input: PhotoReader.() -> FloatArray,
        task: Long?,
    ): Map<String, Double> {
        val kept = store.kept(announced(task))
        return try {
            predict(input, kept)
        } catch (failure: FedLensException) {
            // A round that ended meanwhile may have replaced the newest version, with its client state.
            val now = store.kept(announced(task))
            if (now.newest.id == kept.newest.id) throw failure
            predict(input, now)
        }
    }

    /** See [org.fedlens.sdk.FedLensClient.predict] with a model. */
    suspend fun predict(
        input: PhotoReader.() -> FloatArray,
        model: Model,
    ): Map<String, Double> = predictor.predict(store.kept(announced(model.task)).find(model), input).first

    /** See [org.fedlens.sdk.FedLensClient.fetchModel]. */
    suspend fun fetchModel(task: Long?) {
        val kept = store.kept(announced(task))
        predictor.fetch(kept.newest)
        if (kept.newer != null && follows(kept)) adopt(kept.newest, kept)
    }

    /** See [org.fedlens.sdk.FedLensClient.models]. */
    suspend fun models(task: Long?): Models {
        val model = store.announced(task) ?: return Models(null)
        val kept = store.kept(model)
        val previous = kept.previous?.takeIf(store::isHere)
        return Models(model.task, kept.inUse?.shown(), kept.newer?.shown(), previous?.shown())
    }

    /** See [org.fedlens.sdk.FedLensClient.testModels]. */
    suspend fun testModels(task: Long?): Models {
        store.announced(task)?.let { test(store.kept(it)) }
        return models(task)
    }

    /** See [org.fedlens.sdk.FedLensClient.adopt]. */
    suspend fun adopt(model: Model) {
        val kept = store.kept(announced(model.task))
        val version = kept.find(model)
        predictor.ready(version)
        if (!store.adopt(version, isHeld = version !== kept.newest)) throw ModelStore.replaced(model.id)
        report(version, kept)
    }

    /** Adopt newer models that are here if the rule says so; after a round or a check-in. */
    suspend fun settle() {
        for (model in store.announced.filter { it.rulesCount > 0 }) {
            try {
                settle(store.kept(model))
            } catch (failure: StateException) {
                throw failure
            } catch (_: FedLensException) {
                // A model that cannot be used or tested stays what it is: a newer one.
            }
        }
    }

    private suspend fun settle(kept: Kept) {
        val newer = kept.newer ?: return
        val isTested = adoption == Adoption.IF_BETTER && kept.inUse?.isHeld == false
        if (!isTested) {
            if (follows(kept) && predictor.obtain(newer, mayFetch = false)) adopt(newer, kept)
            return
        }
        val results = lastResults(kept, newer) ?: test(kept)
        val found = results[newer] ?: return
        val before = results[kept.inUse]
        // One that can no longer be used gives way.
        if (before == null || found.correct > before.correct) adopt(newer, kept)
    }

    private suspend fun predict(
        input: PhotoReader.() -> FloatArray,
        kept: Kept,
    ): Map<String, Double> {
        val inUse = kept.inUse
        if (inUse == null || follows(kept)) return predictByNewest(input, kept, inUse)
        return try {
            predictor.predict(inUse, input, kept.newer).first
        } catch (refused: AssignmentException) {
            // Its publisher has withdrawn it, for instance.
            if (kept.newer == null || refused.reason != Reason.POLICY) throw refused
            predictByNewest(input, kept, other = null)
        }
    }

    private suspend fun predictByNewest(
        input: PhotoReader.() -> FloatArray,
        kept: Kept,
        other: Version?,
    ): Map<String, Double> {
        val newest = kept.newest
        val (found, used) = predictor.predict(newest, input, other.takeIf { it !== newest })
        if (used === kept.newer) adopt(used, kept)
        return found
    }

    /** True if the newest version is used as soon as it is here. */
    private fun follows(kept: Kept): Boolean = kept.inUse?.let { adoption == Adoption.ALWAYS && !it.isHeld } ?: true

    /** Use another version if nothing was chosen since [kept] was read. */
    private fun adopt(
        version: Version,
        kept: Kept,
    ) {
        if (store.adopt(version, isHeld = false, kept)) report(version, kept)
    }

    private fun report(
        version: Version,
        kept: Kept,
    ) {
        if (kept.inUse != null && kept.inUse?.id != version.id) emit(Event.ModelAdopted(version.announced.task))
    }

    /** Test the versions that can be used here on the same photos, and store the results. */
    private suspend fun test(kept: Kept): Map<Version, Tested> {
        val snapshot = album.examples()
        val runs = HashMap<Version, Run>()
        for (version in listOfNotNull(kept.inUse, kept.newer, kept.previous)) {
            run(version, snapshot, mayFetch = version !== kept.previous)?.let { runs[version] = it }
        }
        val counted =
            testPhotos(snapshot, runs.values.map { it.classNames })
                .filter { photo -> runs.values.all { photo.label !in it.classNames || photo.entry in it.predicted } }
        val digest = digest(counted)
        val results =
            runs.mapValues { (_, run) ->
                Tested(digest, BooleanArray(counted.size) { run.predicted[counted[it].entry] == counted[it].label })
            }
        store.tested(results)
        return results
    }

    /**
     * The results of the last test if the newer version and the one in use were tested together, on the photos that are
     * there now, and can still be used; otherwise null.
     */
    private suspend fun lastResults(
        kept: Kept,
        newer: Version,
    ): Map<Version, Tested>? {
        val photos = newer.tested?.photos ?: return null
        val compared = listOfNotNull(kept.inUse, newer)
        val tested = (compared + listOfNotNull(kept.previous)).filter { it.tested?.photos == photos }
        if (!tested.containsAll(compared)) return null
        val now = testPhotos(album.examples(), tested.map { predictor.knownClassNames(it.announced) })
        if (digest(now) != photos || !compared.all { canRun(it) }) return null
        return compared.associateWith { checkNotNull(it.tested) }
    }

    /** The test photos of classes of which any of these lists has the name, in their order. */
    private fun testPhotos(
        photos: Examples,
        classNames: List<List<String>>,
    ): List<Example> {
        val known = classNames.flatMapTo(HashSet()) { it }
        return photos.labelled
            .filter { photo -> (onlyTest() || photo.isTest) && photo.label in known }
            .sortedBy { it.entry }
    }

    private fun digest(photos: List<Example>): ByteString =
        ByteString.copyFrom(sha256(photos.joinToString("\n") { "${it.entry} ${it.label}" }.toByteArray()))

    /** True if a version is here, or comes soon, and may be used here. */
    private suspend fun canRun(version: Version): Boolean =
        try {
            predictor.obtain(version, mayFetch = true)
        } catch (_: AssignmentException) {
            false
        }

    /** What a version predicts; null if it is not here or must not be used here. */
    private suspend fun run(
        version: Version,
        photos: Examples,
        mayFetch: Boolean,
    ): Run? =
        try {
            if (predictor.obtain(version, mayFetch)) {
                val classNames = predictor.knownClassNames(version.announced)
                Run(classNames, predictor.test(version, photos, onlyTest()))
            } else {
                null
            }
        } catch (_: AssignmentException) {
            null
        } catch (_: NotHere) {
            null
        }

    private suspend fun Version.shown() =
        Model(id, announced.task, predictor.knownClassNames(announced), knownSinceMs, inUseSinceMs, tested)

    private fun Kept.find(model: Model): Version =
        listOfNotNull(inUse, newer, previous).find { it.id == model.id } ?: throw ModelStore.replaced(model.id)

    private fun announced(task: Long?): CurrentModel {
        val whose = if (task == null) "" else " of task $task"
        return store.announced(task) ?: throw AssignmentException(
            Reason.UNSUPPORTED,
            "the server has announced no model$whose for this client yet; call checkIn() first",
        )
    }

    /** What a version predicts for the test photos of its classes. */
    private class Run(
        val classNames: List<String>,
        val predicted: Map<AlbumEntry, String>,
    )
}
