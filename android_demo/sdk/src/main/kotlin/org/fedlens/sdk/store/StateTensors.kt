package org.fedlens.sdk.store

import org.fedlens.sdk.blob.Blob

/**
 * Client state: tensors that local training leaves on the client for later rounds, by task, set and round.
 *
 * Tensors are written with their result, become current when the server has the result, and are dropped if it is
 * refused.
 */
internal class StateTensors(
    private val state: StateFolder,
    private val files: TensorFiles,
) {
    /** The current tensors of this name, float32 or int64; null if there are none. */
    fun current(
        task: Long,
        name: String,
    ): Blob? {
        val found =
            state.transaction { db ->
                db.query(
                    "SELECT blob_sha256, blob FROM client_state WHERE task = ? AND name = ? AND is_current " +
                        "ORDER BY round DESC",
                    task,
                    name,
                ) { it.bytes(0) to it.bytesOrNull(1) }
            }
        return found.firstOrNull()?.let { (digest, inline) -> files.open(digest, inline) }
    }

    /** Write the tensors of a result, not yet current. */
    fun put(
        db: Statements,
        task: Long,
        round: Long,
        tensors: Map<String, StoredBlob>,
    ) {
        for ((name, stored) in tensors) {
            db.run(
                "INSERT OR REPLACE INTO client_state VALUES (?, ?, ?, 0, ?, ?)",
                task,
                name,
                round,
                stored.sha256,
                stored.inline,
            )
        }
    }

    /** Make the tensors of this round current, in place of earlier ones. */
    fun makeCurrent(
        db: Statements,
        task: Long,
        round: Long,
    ) {
        val fresh = "SELECT name FROM client_state WHERE task = ? AND round = ? AND NOT is_current"
        db.run("DELETE FROM client_state WHERE task = ? AND is_current AND name IN ($fresh)", task, task, round)
        db.run("UPDATE client_state SET is_current = 1 WHERE task = ? AND round = ?", task, round)
    }

    /** Delete the tensors of this round; earlier ones stay current. */
    fun drop(
        db: Statements,
        task: Long,
        round: Long,
    ) {
        db.run("DELETE FROM client_state WHERE task = ? AND round = ? AND NOT is_current", task, round)
    }
}
