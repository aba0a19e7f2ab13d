package org.fedlens.sdk.store

import org.fedlens.proto.v1.LocalPass
import org.fedlens.sdk.blob.Blob

/**
 * Kept sets: tensors that a local pass left on the client for later rounds, by task, set and round.
 *
 * Written with the result that they belong to, current once the server has that result, dropped if it is refused.
 */
internal class KeptSets(
    private val state: State,
    private val files: TensorFiles,
) {
    /** The tensors kept last under this name, float32 or int64; null if there are none yet. */
    fun current(
        task: Long,
        name: String,
    ): Blob? {
        val found =
            state.transaction { db ->
                db.query(
                    "SELECT blob_sha256, blob FROM kept WHERE task = ? AND name = ? AND is_current ORDER BY round DESC",
                    task,
                    name,
                ) { it.bytes(0) to it.bytesOrNull(1) }
            }
        return found.firstOrNull()?.let { (digest, inline) -> files.open(digest, inline) }
    }

    /** A local pass with nothing but the start rules and extractors of this task's last pass; null: there was none. */
    fun startRules(task: Long): LocalPass? =
        state
            .transaction { db ->
                db.query("SELECT local_pass FROM start_rules WHERE task = ?", task) { it.bytes(0) }
            }.firstOrNull()
            ?.let(LocalPass::parseFrom)

    /** Writes the sets of a pass, not yet current. */
    fun put(
        db: Statements,
        task: Long,
        round: Long,
        sets: Map<String, StoredBlob>,
    ) {
        for ((name, stored) in sets) {
            db.run(
                "INSERT OR REPLACE INTO kept VALUES (?, ?, ?, 0, ?, ?)",
                task,
                name,
                round,
                stored.sha256,
                stored.inline,
            )
        }
    }

    /** Writes the rules by which a pass starts, as [startRules] gives them. */
    fun putStartRules(
        db: Statements,
        task: Long,
        rules: LocalPass,
    ) {
        db.run("INSERT OR REPLACE INTO start_rules VALUES (?, ?)", task, rules.toByteArray())
    }

    /** Lets the sets of this round replace those before. */
    fun makeCurrent(
        db: Statements,
        task: Long,
        round: Long,
    ) {
        val fresh = "SELECT name FROM kept WHERE task = ? AND round = ? AND NOT is_current"
        db.run("DELETE FROM kept WHERE task = ? AND is_current AND name IN ($fresh)", task, task, round)
        db.run("UPDATE kept SET is_current = 1 WHERE task = ? AND round = ?", task, round)
    }

    /** Deletes the sets of this round; those before stay current. */
    fun drop(
        db: Statements,
        task: Long,
        round: Long,
    ) {
        db.run("DELETE FROM kept WHERE task = ? AND round = ? AND NOT is_current", task, round)
    }
}
