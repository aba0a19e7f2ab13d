package org.fedlens.sdk.store

import android.database.Cursor
import android.database.DatabaseErrorHandler
import android.database.SQLException
import android.database.sqlite.SQLiteCantOpenDatabaseException
import android.database.sqlite.SQLiteCursor
import android.database.sqlite.SQLiteDatabase
import android.database.sqlite.SQLiteDatabaseLockedException
import android.database.sqlite.SQLiteDiskIOException
import android.database.sqlite.SQLiteFullException
import android.database.sqlite.SQLiteOutOfMemoryException
import android.database.sqlite.SQLiteProgram
import android.database.sqlite.SQLiteReadOnlyDatabaseException
import android.database.sqlite.SQLiteTableLockedException
import org.fedlens.sdk.StateException
import org.fedlens.sdk.StateException.Reason
import java.io.File

/** A database on Android's SQLite. */
public class AndroidDatabase private constructor(
    private val file: File,
    private val database: SQLiteDatabase,
) : Database {
    @Synchronized
    override fun <T> transaction(block: (Statements) -> T): T =
        naming(file) {
            if (!database.isOpen) throw StateException(Reason.NOT_WRITABLE, "$file cannot be used: it is closed")
            database.beginTransactionNonExclusive()
            val result =
                try {
                    block(AndroidStatements(database)).also { database.setTransactionSuccessful() }
                } catch (error: Throwable) {
                    rollBack(error)
                    throw error
                }
            database.endTransaction()
            result
        }

    private fun rollBack(reason: Throwable) {
        try {
            database.endTransaction()
        } catch (error: SQLException) {
            // SQLite has already rolled back, as it does when the disk is full.
            reason.addSuppressed(error)
        }
    }

    @Synchronized
    override fun close() {
        database.close()
    }

    public companion object {
        private const val FLAGS =
            SQLiteDatabase.CREATE_IF_NECESSARY or SQLiteDatabase.ENABLE_WRITE_AHEAD_LOGGING or
                SQLiteDatabase.NO_LOCALIZED_COLLATORS

        // Android's default handler deletes a damaged file.
        private val leaveAlone = DatabaseErrorHandler { }

        /**
         * Open a database file, creating it if necessary.
         *
         * @param isDurable True if a committed transaction must survive a power failure; otherwise it survives only the
         *     end of the process, and the file stays intact.
         * @throws StateException The file cannot be opened, or is not a database.
         */
        public fun open(
            file: File,
            isDurable: Boolean = true,
        ): Database =
            naming(file) {
                val database = SQLiteDatabase.openDatabase(file.path, null, FLAGS, leaveAlone)
                try {
                    database.execSQL("PRAGMA synchronous = ${if (isDurable) "FULL" else "NORMAL"}")
                    AndroidDatabase(file, database)
                } catch (error: SQLException) {
                    database.close()
                    throw error
                }
            }

        private inline fun <T> naming(
            file: File,
            work: () -> T,
        ): T =
            try {
                work()
            } catch (error: SQLException) {
                throw StateException(reason(error), "$file cannot be used: ${error.message}", error)
            }

        private fun reason(error: SQLException): Reason =
            when (error) {
                is SQLiteFullException,
                is SQLiteDiskIOException,
                is SQLiteReadOnlyDatabaseException,
                is SQLiteCantOpenDatabaseException,
                is SQLiteOutOfMemoryException,
                -> Reason.NOT_WRITABLE
                is SQLiteDatabaseLockedException, is SQLiteTableLockedException -> Reason.IN_USE
                else -> Reason.DAMAGED
            }
    }
}

private class AndroidStatements(
    private val database: SQLiteDatabase,
) : Statements {
    override fun run(
        sql: String,
        vararg arguments: Any?,
    ) {
        database.compileStatement(sql).use { statement ->
            bind(statement, arguments)
            statement.executeUpdateDelete()
        }
    }

    override fun <T> query(
        sql: String,
        vararg arguments: Any?,
        row: (Row) -> T,
    ): List<T> {
        // rawQuery() accepts arguments only as text.
        val found =
            database.rawQueryWithFactory({ _, driver, table, query ->
                bind(query, arguments)
                SQLiteCursor(driver, table, query)
            }, sql, null, "")
        return found.use { cursor ->
            val current = AndroidRow(cursor)
            val rows = ArrayList<T>()
            while (cursor.moveToNext()) rows += row(current)
            rows
        }
    }

    private fun bind(
        program: SQLiteProgram,
        arguments: Array<out Any?>,
    ) {
        arguments.forEachIndexed { index, argument ->
            when (argument) {
                null -> program.bindNull(index + 1)
                is Long -> program.bindLong(index + 1, argument)
                is Double -> program.bindDouble(index + 1, argument)
                is String -> program.bindString(index + 1, argument)
                is ByteArray -> program.bindBlob(index + 1, argument)
                else -> throw IllegalArgumentException("argument ${index + 1} is a ${argument.javaClass.name}")
            }
        }
    }
}

private class AndroidRow(
    private val cursor: Cursor,
) : Row {
    override fun isNull(column: Int): Boolean = cursor.isNull(column)

    override fun long(column: Int): Long = cursor.getLong(column)

    override fun double(column: Int): Double = cursor.getDouble(column)

    override fun text(column: Int): String = cursor.getString(column)

    override fun bytes(column: Int): ByteArray = cursor.getBlob(column)
}
