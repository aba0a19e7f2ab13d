package org.fedlens.sdk.store

import org.fedlens.sdk.KeyedHash
import org.fedlens.sdk.StateException
import org.fedlens.sdk.StateException.Reason
import org.fedlens.sdk.toHex
import java.io.Closeable
import java.io.File

/**
 * The state folder: data that a client must not lose, bound to one server and one identity, used by one client at a
 * time.
 *
 *     secret           whoever has it is this client; see [SecretStore]
 *     client.sqlite3   identity, outbox, client state, models, noisy answers, journal
 *     tensors/         blobs of the outbox and of client state that are too large for a row
 *     lock             held while a client is open
 *     cache/           what can be fetched or computed again ([Cache], [FeatureCache])
 */
internal class StateFolder private constructor(
    val folder: File,
    private val secretBytes: ByteArray,
    private val database: Database,
    private val lock: FolderLock,
) : Closeable {
    /** The client's secret, 32 bytes. */
    val secret: ByteArray get() = secretBytes.copyOf()

    /** The client's public id, 32 bytes. */
    val clientId: ByteArray get() = KeyedHash.clientId(secretBytes)

    /** The folder of [TensorFiles]. */
    val tensorFolder: File get() = tensorFolder(folder)

    /** The folder of [Cache] and [FeatureCache]. */
    val cacheFolder: File get() = cacheFolder(folder)

    /**
     * Run [block] atomically; the result is on the disk when this returns. Do not nest transactions; other threads
     * wait.
     */
    fun <T> transaction(block: (Statements) -> T): T = database.transaction(block)

    /** The value stored under [key]; null if there is none. */
    fun get(key: String): ByteArray? =
        transaction { db -> db.query("SELECT value FROM meta WHERE key = ?", key) { it.bytes(0) }.firstOrNull() }

    /** Store values by key, atomically. */
    fun set(vararg values: Pair<String, ByteArray>) {
        transaction { db ->
            for ((key, value) in values) db.run("INSERT OR REPLACE INTO meta VALUES (?, ?)", key, value)
        }
    }

    /**
     * Delete role, models, pause, results and client state, which mean nothing to a server that does not know the
     * client.
     *
     * Noisy answers stay, because a second answer would let the noise average out. The journal stays too.
     */
    fun reset() {
        transaction { resetRows(it) }
        // After a crash, the next sweep of the outbox deletes the rest.
        tensorFolder.listFiles()?.forEach { it.delete() }
    }

    /** Release the folder. */
    override fun close() {
        lock.use { database.close() }
    }

    private fun bind(
        key: String,
        value: ByteArray,
        what: String,
        name: (ByteArray) -> String,
    ) {
        val bound = get(key)
        if (bound == null) {
            set(key to value)
        } else if (!bound.contentEquals(value)) {
            throw StateException(
                Reason.BOUND_TO_ANOTHER,
                "state folder $folder belongs to ${name(bound)}, not to $what; use a folder of its own for each",
            )
        }
    }

    companion object {
        /** Version of the tables; a folder with a newer version is refused. */
        const val SCHEMA_VERSION: Long = 1

        private val SCHEMA =
            Schema(
                SCHEMA_VERSION,
                "CREATE TABLE meta (key TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID",
                """CREATE TABLE outbox (
                    place INTEGER PRIMARY KEY AUTOINCREMENT, task INTEGER NOT NULL, round INTEGER NOT NULL,
                    answer INTEGER NOT NULL, header BLOB NOT NULL, body_sha256 BLOB NOT NULL,
                    journal INTEGER NOT NULL, UNIQUE (task, round)
                )""",
                """CREATE TABLE outbox_blobs (
                    task INTEGER, round INTEGER, position INTEGER, blob_sha256 BLOB NOT NULL, blob BLOB,
                    PRIMARY KEY (task, round, position)
                )""",
                """CREATE TABLE client_state (
                    task INTEGER, name TEXT, round INTEGER, is_current INTEGER NOT NULL,
                    blob_sha256 BLOB NOT NULL, blob BLOB, PRIMARY KEY (task, name, round, is_current)
                )""",
                """CREATE TABLE model (
                    id INTEGER PRIMARY KEY AUTOINCREMENT, task INTEGER NOT NULL, place TEXT NOT NULL,
                    announced BLOB NOT NULL, known_since_ms INTEGER NOT NULL, in_use_since_ms INTEGER,
                    is_held INTEGER NOT NULL, photos BLOB, hits BLOB, needs BLOB
                )""",
                """CREATE TABLE model_state (
                    model INTEGER, name TEXT, blob_sha256 BLOB NOT NULL, blob BLOB, PRIMARY KEY (model, name)
                )""",
                """CREATE TABLE journal (
                    id INTEGER PRIMARY KEY AUTOINCREMENT, kind TEXT NOT NULL, outcome TEXT NOT NULL,
                    time_ms INTEGER NOT NULL, task INTEGER, round INTEGER, bytes INTEGER NOT NULL,
                    message BLOB NOT NULL, tensors BLOB
                )""",
            )

        /**
         * Open the state folder of a client of [server], creating it if necessary.
         *
         * @param folder The state folder.
         * @param server Address of the server, which must be the same every time.
         * @param openDatabase The platform's function that opens a database.
         * @param secrets Store of the identity, which must be the same every time.
         * @throws StateException The folder belongs to another server or identity, is in use, is damaged, or is from a
         *     newer version.
         */
        fun open(
            folder: File,
            server: String,
            openDatabase: (File) -> Database,
            secrets: SecretStore = FileSecret(File(folder, "secret")),
        ): StateFolder {
            makeFolder(folder, "state folder")
            val lock = FolderLock.take(folder, "state folder")
            var database: Database? = null
            try {
                val secret = secrets.secret()
                database = SCHEMA.open(File(folder, "client.sqlite3"), openDatabase)
                val state = StateFolder(folder, secret, database, lock)
                state.bind("server", server.toByteArray(), "server $server", ::String)
                state.bind("client_id", state.clientId, "this identity") { "client ${it.toHex()}" }
                return state
            } catch (error: Throwable) {
                database?.close()
                lock.close()
                throw error
            }
        }

        /**
         * Delete the content of a closed client's folder, and its identity, even if the folder cannot be opened, so that
         * it may be bound to another server. As after [reset], noisy answers stay, unless the database cannot be read.
         *
         * @throws StateException The folder is in use, or cannot be written.
         */
        fun erase(
            folder: File,
            openDatabase: (File) -> Database,
            secrets: SecretStore,
        ) {
            makeFolder(folder, "state folder")
            FolderLock.take(folder, "state folder").use {
                deleteFolder(cacheFolder(folder))
                eraseRows(File(folder, "client.sqlite3"), openDatabase)
                deleteFolder(tensorFolder(folder))
                // Last, so that a failed erasure can be repeated.
                secrets.delete()
            }
        }

        private fun eraseRows(
            file: File,
            openDatabase: (File) -> Database,
        ) {
            try {
                SCHEMA.open(file, openDatabase).use { database ->
                    database.transaction { db ->
                        resetRows(db)
                        db.run("DELETE FROM journal")
                        db.run("DELETE FROM meta WHERE key NOT LIKE ?", "${NoisyAnswers.KEY}%")
                    }
                }
            } catch (error: StateException) {
                if (error.reason != Reason.DAMAGED && error.reason != Reason.NEWER_VERSION) throw error
                deleteDatabase(file)
            }
        }

        private fun resetRows(db: Statements) {
            db.run("DELETE FROM meta WHERE key IN ('role', 'current', 'not_before')")
            db.run("DELETE FROM outbox")
            db.run("DELETE FROM outbox_blobs")
            db.run("DELETE FROM client_state")
            db.run("DELETE FROM model")
            db.run("DELETE FROM model_state")
            Journal.dropWaiting(db)
        }

        private fun deleteFolder(folder: File) {
            if (!folder.deleteRecursively()) {
                throw StateException(Reason.NOT_WRITABLE, "$folder cannot be deleted; delete it, or try again")
            }
        }

        private fun tensorFolder(folder: File) = File(folder, "tensors")

        private fun cacheFolder(folder: File) = File(folder, "cache")
    }
}
