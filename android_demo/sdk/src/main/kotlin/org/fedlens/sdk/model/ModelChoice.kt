package org.fedlens.sdk.model

import com.google.protobuf.ByteString
import org.fedlens.proto.v1.CurrentModel
import org.fedlens.sdk.AlbumEntry
import org.fedlens.sdk.AssignmentException
import org.fedlens.sdk.AssignmentException.Reason
import org.fedlens.sdk.Event
import org.fedlens.sdk.FedLensException
import org.fedlens.sdk.StateException
import org.fedlens.sdk.album.Album
import org.fedlens.sdk.album.AlbumSnapshot
import org.fedlens.sdk.sha256
import org.fedlens.sdk.training.NotHere
import java.io.File

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
    private val album: Album,
    private val adoption: Adoption,
    private val onlyTest: () -> Boolean,
    private val emit: (Event) -> Unit,
) {
    /** See [org.fedlens.sdk.FedLensClient.predict]. */
    suspend fun predict(
        photo: File,
        task: Long?,
    ): Map<String, Double> {
        val model = announced(task)
        return try {
            predict(photo, store.kept(model))
        } catch (_: StateException) {
            // A result that was delivered meanwhile has replaced the newest version and its client state.
            predict(photo, store.kept(model))
        }
    }

    /** See [org.fedlens.sdk.FedLensClient.predict] with a model. */
    suspend fun predict(
        photo: File,
        model: Model,
    ): Map<String, Double> = predictor.predict(store.kept(announced(model.task)).find(model), photo).first

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
        if (!store.adopt(version, isHeld = version !== kept.newest)) throw gone(model)
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
        val results = test(kept)
        val found = results[newer] ?: return
        val before = results[kept.inUse]
        // One that can no longer be used gives way.
        if (before == null || found.correct > before.correct) adopt(newer, kept)
    }

    private suspend fun predict(
        photo: File,
        kept: Kept,
    ): Map<String, Double> {
        val inUse = kept.inUse
        if (inUse == null || follows(kept)) return predictByNewest(photo, kept, inUse)
        return try {
            predictor.predict(inUse, photo, kept.newer).first
        } catch (refused: AssignmentException) {
            // Its publisher has withdrawn it, for instance.
            if (kept.newer == null || refused.reason != Reason.POLICY) throw refused
            predictByNewest(photo, kept, other = null)
        }
    }

    private suspend fun predictByNewest(
        photo: File,
        kept: Kept,
        other: Version?,
    ): Map<String, Double> {
        val newest = kept.newest
        val (found, used) = predictor.predict(newest, photo, other.takeIf { it !== newest })
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
        val snapshot = album.photos()
        val runs = HashMap<Version, Run>()
        for (version in listOfNotNull(kept.inUse, kept.newer, kept.previous)) {
            run(version, snapshot, mayFetch = version !== kept.previous)?.let { runs[version] = it }
        }
        val known = runs.values.flatMapTo(HashSet()) { it.classNames }
        val counted =
            snapshot.photos
                .filter { photo -> (onlyTest() || photo.isTest) && photo.label in known }
                .filter { photo -> runs.values.all { photo.label !in it.classNames || photo.entry in it.predicted } }
                .sortedBy { it.entry }
        val listed = counted.joinToString("\n") { "${it.entry} ${it.label}" }
        val digest = ByteString.copyFrom(sha256(listed.toByteArray()))
        val results =
            runs.mapValues { (_, run) ->
                Tested(digest, BooleanArray(counted.size) { run.predicted[counted[it].entry] == counted[it].label })
            }
        store.tested(results)
        return results
    }

    /** What a version predicts; null if it is not here or must not be used here. */
    private suspend fun run(
        version: Version,
        photos: AlbumSnapshot,
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
        listOfNotNull(inUse, newer, previous).find { it.id == model.id } ?: throw gone(model)

    private fun announced(task: Long?): CurrentModel {
        val whose = if (task == null) "" else " of task $task"
        return store.announced(task) ?: throw AssignmentException(
            Reason.UNSUPPORTED,
            "the server has announced no model$whose for this client yet; call checkIn() first",
        )
    }

    private fun gone(model: Model) =
        AssignmentException(Reason.UNSUPPORTED, "model ${model.id} has been replaced; ask for models() again")

    /** What a version predicts for the test photos of its classes. */
    private class Run(
        val classNames: List<String>,
        val predicted: Map<AlbumEntry, String>,
    )
}
