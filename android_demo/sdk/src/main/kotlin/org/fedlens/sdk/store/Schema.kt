package org.fedlens.sdk.store

import org.fedlens.sdk.StateException
import org.fedlens.sdk.StateException.Reason
import java.io.File

/** The tables of a database file, with a version that grows when they change. */
internal class Schema(
    val version: Long,
    private vararg val statements: String,
) {
    /**
     * Open a file, and create the tables in a new one.
     *
     * @throws StateException The file cannot be opened, is damaged, or was written by a newer version.
     */
    fun open(
        file: File,
        openDatabase: (File) -> Database,
    ): Database {
        val database = openDatabase(file)
        try {
            database.transaction { prepare(it, file) }
        } catch (error: Throwable) {
            database.close()
            throw error
        }
        return database
    }

    /**
     * [open] a file, replacing one that is damaged or of a newer version.
     *
     * @throws StateException The file cannot be opened for another reason.
     */
    fun openNewIfDamaged(
        file: File,
        openDatabase: (File) -> Database,
    ): Database =
        try {
            open(file, openDatabase)
        } catch (error: StateException) {
            if (error.reason != Reason.DAMAGED && error.reason != Reason.NEWER_VERSION) throw error
            deleteDatabase(file)
            open(file, openDatabase)
        }

    private fun prepare(
        db: Statements,
        file: File,
    ) {
        val found = db.query("PRAGMA user_version") { it.long(0) }.single()
        if (found > version) {
            throw StateException(
                Reason.NEWER_VERSION,
                "$file was written by a newer fedlens (schema $found, this one reads $version); upgrade, or use " +
                    "another folder",
            )
        }
        if (found < version) {
            statements.forEach { db.run(it) }
            db.run("PRAGMA user_version = $version")
        }
    }
}

/** Delete a closed database file, with SQLite's files beside it. */
internal fun deleteDatabase(file: File) {
    for (suffix in listOf("", "-wal", "-shm")) File(file.path + suffix).delete()
}
