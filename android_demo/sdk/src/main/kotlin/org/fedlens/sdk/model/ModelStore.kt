package org.fedlens.sdk.model

import com.google.protobuf.ByteString
import org.fedlens.proto.v1.CurrentModel
import org.fedlens.proto.v1.Finished
import org.fedlens.sdk.AssignmentException
import org.fedlens.sdk.AssignmentException.Reason
import org.fedlens.sdk.KeyedHash.DIGEST_BYTES
import org.fedlens.sdk.blob.Tensor
import org.fedlens.sdk.model.Place.IN_USE
import org.fedlens.sdk.model.Place.NEWER
import org.fedlens.sdk.model.Place.PREVIOUS
import org.fedlens.sdk.newSha256
import org.fedlens.sdk.store.Cache
import org.fedlens.sdk.store.Pins
import org.fedlens.sdk.store.Row
import org.fedlens.sdk.store.StateFolder
import org.fedlens.sdk.store.Statements
import org.fedlens.sdk.store.TensorFiles
import org.fedlens.sdk.store.bytesOrNull

/**
 * The announced models, and of each task up to three versions: the one in use, a newer one, and the one in use before.
 *
 * A version keeps its client state, and [Cache.trim] spares what it needs: always for the one in use; for the others as
 * long as all of it takes at most half of the cache, so that rounds have the other half.
 *
 * @param nowMs The clock, in milliseconds since 1970.
 */
internal class ModelStore(
    private val state: StateFolder,
    private val files: TensorFiles,
    private val cache: Cache,
    private val nowMs: () -> Long = System::currentTimeMillis,
) {
    /** The models that the server announced last. */
    @Volatile
    var announced: List<CurrentModel> = emptyList()
        private set
    private var pins = Pins()

    init {
        reload()
    }

    /** Read everything anew, as after [StateFolder.reset]. */
    fun reload() {
        announced = Finished.parseFrom(state.get(ANNOUNCED) ?: ByteArray(0)).modelsList
        pin()
    }

    /** Store the models that the server announces. */
    fun announce(models: List<CurrentModel>) {
        if (models == announced) return
        state.set(ANNOUNCED to Finished.newBuilder().addAllModels(models).build().toByteArray())
        announced = models
        pin()
    }

    /** The announced model of [task], or of the first task, that can be put together. */
    fun announced(task: Long?): CurrentModel? =
        announced.find { it.rulesCount > 0 && (task == null || it.task == task) }

    /** The versions of the task of an announced model; what it makes with the present client state is the newest. */
    fun kept(model: CurrentModel): Kept {
        var isChanged = false
        val found =
            state.transaction { db ->
                val before = versions(db, model.task)
                val key = key(model, currentState(db, model))
                val same = before.find { key(it.announced, keptState(db, it.id)) == key }
                val newer = before.find { it.place == NEWER && it !== same }
                newer?.let { delete(db, it) }
                if (same == null) insert(db, model)
                if (same?.place == PREVIOUS) db.run("UPDATE model SET place = ? WHERE id = ?", NEWER.name, same.id)
                // Another statement or delta of the same weights.
                val isRenewed = same != null && same.announced != model
                if (isRenewed) db.run("UPDATE model SET announced = ? WHERE id = ?", model.toByteArray(), same?.id)
                isChanged = newer != null || same?.place == PREVIOUS
                if (isChanged || isRenewed || same == null) versions(db, model.task) else before
            }
        if (isChanged) pin()
        return Kept(found)
    }

    /** Note that everything that a version is made of is in the cache: these digests. */
    fun arrived(
        version: Version,
        needs: Set<ByteString>,
    ) {
        if (needs == version.needs) return
        val digests = needs.fold(ByteString.EMPTY, ByteString::concat).toByteArray()
        state.transaction { it.run("UPDATE model SET needs = ? WHERE id = ?", digests, version.id) }
        pin()
    }

    /**
     * Use another version for predictions, or keep the one in use. The one in use before is then the newer one if it was
     * the newest, otherwise the previous one.
     *
     * @param isHeld True if it stays although there is a newer one.
     * @param expected Nothing happens if another choice was made since this was read; null: whatever was chosen.
     * @return False if nothing has happened, because of that or because the version is gone.
     */
    fun adopt(
        version: Version,
        isHeld: Boolean,
        expected: Kept? = null,
    ): Boolean {
        val isAdopted =
            state.transaction { db ->
                val versions = versions(db, version.announced.task)
                val next = versions.find { it.id == version.id } ?: return@transaction false
                val others = versions - next
                val left = others.find { it.place == IN_USE }
                if (expected != null && (left?.id != expected.inUse?.id || left?.isHeld != expected.inUse?.isHeld)) {
                    return@transaction false
                }
                if (left != null) {
                    val isNewest = others.none { it.place == NEWER } && next.place == PREVIOUS
                    others.find { it.place == PREVIOUS }?.let { delete(db, it) }
                    val place = if (isNewest) NEWER else PREVIOUS
                    db.run("UPDATE model SET place = ?, is_held = 0 WHERE id = ?", place.name, left.id)
                }
                val sinceMs = next.inUseSinceMs.takeIf { next.place == IN_USE } ?: nowMs()
                db.run(
                    "UPDATE model SET place = ?, in_use_since_ms = ?, is_held = ? WHERE id = ?",
                    IN_USE.name,
                    sinceMs,
                    if (isHeld) 1L else 0L,
                    next.id,
                )
                true
            }
        pin()
        return isAdopted
    }

    /** Store the results of tests. */
    fun tested(results: Map<Version, Tested>) {
        state.transaction { db ->
            for ((version, tested) in results) {
                val hits = ByteArray(tested.hits.size) { if (tested.hits[it]) 1 else 0 }
                val photos = tested.photos.toByteArray()
                db.run("UPDATE model SET photos = ?, hits = ? WHERE id = ?", photos, hits, version.id)
            }
        }
    }

    /** True if nothing of what a version needs was deleted. */
    fun isHere(version: Version): Boolean =
        version.needs.isNotEmpty() && version.needs.all { cache.file(it.toByteArray()).isFile }

    private fun insert(
        db: Statements,
        model: CurrentModel,
    ) {
        db.run(
            "INSERT INTO model (task, place, announced, known_since_ms, is_held) VALUES (?, ?, ?, ?, 0)",
            model.task,
            NEWER.name,
            model.toByteArray(),
            nowMs(),
        )
        val id = db.query("SELECT last_insert_rowid()") { it.long(0) }.single()
        for ((name, blob) in currentState(db, model)) {
            db.run("INSERT INTO model_state VALUES (?, ?, ?, ?)", id, name, blob.sha256, blob.inline)
        }
    }

    private fun delete(
        db: Statements,
        version: Version,
    ) {
        db.run("DELETE FROM model WHERE id = ?", version.id)
        db.run("DELETE FROM model_state WHERE model = ?", version.id)
    }

    private fun versions(
        db: Statements,
        task: Long,
    ): List<Version> = db.query("$SELECT WHERE task = ?", task, row = ::version)

    private fun version(row: Row): Version {
        val id = row.long(0)
        val digests = ByteString.copyFrom(row.bytesOrNull(8) ?: ByteArray(0))
        return Version(
            id = id,
            place = Place.valueOf(row.text(1)),
            announced = CurrentModel.parseFrom(row.bytes(2)),
            knownSinceMs = row.long(3),
            inUseSinceMs = if (row.isNull(4)) null else row.long(4),
            isHeld = row.long(5) == 1L,
            tested =
                row.bytesOrNull(6)?.let { photos ->
                    val hits = row.bytes(7)
                    Tested(ByteString.copyFrom(photos), BooleanArray(hits.size) { hits[it] == 1.toByte() })
                },
            needs =
                (0 until digests.size() step DIGEST_BYTES).mapTo(HashSet()) {
                    digests.substring(it, it + DIGEST_BYTES)
                },
        ) { name -> tensors(id, name) }
    }

    private fun tensors(
        id: Long,
        name: String,
    ): Map<String, Tensor>? {
        val found =
            state.transaction { db ->
                // Without its state, a version would be taken for one that has none.
                if (db.query("SELECT 1 FROM model WHERE id = ?", id) { }.isEmpty()) throw replaced(id)
                keptState(db, id)[name]
            }
        return found?.let { files.open(it.sha256, it.inline).tensors }
    }

    private fun keptState(
        db: Statements,
        id: Long,
    ) = states(db, "model_state WHERE model = ?", id)

    /** The current client state that the rules of a model name. */
    private fun currentState(
        db: Statements,
        model: CurrentModel,
    ): Map<String, StateBlob> {
        val names = model.rulesList.mapTo(HashSet()) { it.source.state }
        return states(db, "client_state WHERE is_current AND task = ?", model.task).filterKeys { it in names }
    }

    private fun states(
        db: Statements,
        where: String,
        id: Long,
    ): Map<String, StateBlob> =
        db
            .query("SELECT name, blob_sha256, blob FROM $where ORDER BY name", id) {
                it.text(0) to StateBlob(it.bytes(1), it.bytesOrNull(2))
            }.toMap()

    /** Keep what the versions of the announced tasks need. */
    @Synchronized
    private fun pin() {
        val tasks = announced.map { it.task }
        val versions = state.transaction { db -> tasks.flatMap { versions(db, it) } }
        val next = Pins()
        var room = cache.maxBytes / 2
        val kept = HashSet<ByteString>()
        for (version in versions.sortedBy { ORDER.indexOf(it.place) }) {
            val more = version.needs - kept
            val bytes = more.sumOf { cache.file(it.toByteArray()).length() }
            if (version.place != IN_USE && bytes > room) continue
            room -= bytes
            kept += more
            more.forEach { cache.pin(it.toByteArray(), next) }
        }
        pins.close()
        pins = next
    }

    private class StateBlob(
        val sha256: ByteArray,
        val inline: ByteArray?,
    )

    companion object {
        /** The failure of whoever asks for a version that has been deleted. */
        fun replaced(id: Long) =
            AssignmentException(Reason.UNSUPPORTED, "model $id has been replaced; ask for models() again")

        // [StateFolder.reset] deletes it, and the rows.
        private const val ANNOUNCED = "current"
        private const val SELECT =
            "SELECT id, place, announced, known_since_ms, in_use_since_ms, is_held, photos, hits, needs FROM model"

        // A newer model can be fetched again, the previous one perhaps not.
        private val ORDER = listOf(IN_USE, PREVIOUS, NEWER)

        /** Digest of what decides the weights; announcements of the same weights differ in statements and deltas. */
        private fun key(
            model: CurrentModel,
            state: Map<String, StateBlob>,
        ): ByteString {
            val names = model.rulesList.map { it.source.download } + model.extractorsList
            val content =
                CurrentModel
                    .newBuilder()
                    .setBundle(model.bundle)
                    .addAllRules(model.rulesList)
                    .addAllExtractors(model.extractorsList)
            val digest = newSha256().apply { update(content.build().toByteArray()) }
            for (set in model.setsList.filter { it.name in names }.sortedBy { it.name }) {
                digest.update("\n${set.name}\n".toByteArray())
                digest.update(set.sha256.toByteArray())
            }
            for ((name, blob) in state) {
                digest.update("\n/$name\n".toByteArray())
                digest.update(blob.sha256)
            }
            return ByteString.copyFrom(digest.digest())
        }
    }
}
