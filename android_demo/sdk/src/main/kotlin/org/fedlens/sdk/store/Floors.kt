package org.fedlens.sdk.store

import java.io.Closeable
import java.io.File

/**
 * What a client remembers of publishers, whichever server it works for: the greatest floor of each publisher and name
 * of bundle, and the bundles it has used. All clients of an application can share the file and use it at a time.
 *
 * Failures are a [org.fedlens.sdk.StateException].
 */
internal class Floors private constructor(
    private val database: Database,
) : Closeable {
    /** The greatest floor that was noted; 0 if there is none. */
    fun of(
        publisher: ByteArray,
        name: String,
    ): Long = database.transaction { find(it, publisher, name) }

    /** Note a floor, unless a greater one is noted already. */
    fun raise(
        publisher: ByteArray,
        name: String,
        floor: Long,
    ) {
        database.transaction { db ->
            if (floor > find(db, publisher, name)) {
                db.run("INSERT OR REPLACE INTO floors VALUES (?, ?, ?)", publisher, name, floor)
            }
        }
    }

    /** True if a use of the bundle with this digest was noted. */
    fun hasUsed(bundle: ByteArray): Boolean =
        database.transaction { db -> db.query("SELECT 1 FROM used WHERE bundle = ?", bundle) { it.long(0) }.any() }

    /** Note that a bundle was used while its statement held. */
    fun noteUse(bundle: ByteArray) {
        database.transaction { it.run("INSERT OR IGNORE INTO used VALUES (?)", bundle) }
    }

    /** Close the file. */
    override fun close() = database.close()

    private fun find(
        db: Statements,
        publisher: ByteArray,
        name: String,
    ): Long =
        db
            .query("SELECT floor FROM floors WHERE publisher = ? AND name = ?", publisher, name) { it.long(0) }
            .firstOrNull() ?: 0

    companion object {
        private val SCHEMA =
            Schema(
                1,
                """CREATE TABLE floors (
                    publisher BLOB, name TEXT, floor INTEGER NOT NULL, PRIMARY KEY (publisher, name)
                ) WITHOUT ROWID""",
                "CREATE TABLE used (bundle BLOB PRIMARY KEY) WITHOUT ROWID",
            )

        /** Open the file, creating it if necessary. */
        fun open(
            file: File,
            openDatabase: (File) -> Database,
        ): Floors {
            checkNotNull(file.absoluteFile.parentFile).let { makeFolder(it, "folder") }
            return Floors(SCHEMA.open(file, openDatabase))
        }

        /** Delete a closed file that cannot be read. */
        fun eraseDamaged(
            file: File,
            openDatabase: (File) -> Database,
        ) {
            if (file.exists()) SCHEMA.openNewIfDamaged(file, openDatabase).close()
        }
    }
}
