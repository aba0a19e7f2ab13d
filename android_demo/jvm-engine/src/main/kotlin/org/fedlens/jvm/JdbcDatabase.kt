package org.fedlens.jvm

import org.fedlens.sdk.StateException
import org.fedlens.sdk.StateException.Reason
import org.fedlens.sdk.store.Database
import org.fedlens.sdk.store.Row
import org.fedlens.sdk.store.Statements
import org.sqlite.SQLiteConfig
import org.sqlite.SQLiteConfig.SynchronousMode
import org.sqlite.SQLiteErrorCode
import org.sqlite.SQLiteException
import org.sqlite.SQLiteJDBCLoader
import java.io.File
import java.nio.file.Files
import java.sql.Connection
import java.sql.PreparedStatement
import java.sql.ResultSet
import java.sql.SQLException

/** A database on sqlite-jdbc, for desktop JVMs. */
public class JdbcDatabase private constructor(
    private val file: File,
    private val connection: Connection,
) : Database {
    @Synchronized
    override fun <T> transaction(block: (Statements) -> T): T =
        naming(file) {
            if (connection.isClosed) throw StateException(Reason.NOT_WRITABLE, "$file cannot be used: it is closed")
            execute("BEGIN IMMEDIATE")
            val result =
                try {
                    block(JdbcStatements(connection)).also { execute("COMMIT") }
                } catch (error: Throwable) {
                    rollBack(error)
                    throw error
                }
            result
        }

    @Synchronized
    override fun close() {
        connection.close()
    }

    private fun execute(sql: String) {
        connection.createStatement().use { it.execute(sql) }
    }

    private fun rollBack(reason: Throwable) {
        try {
            execute("ROLLBACK")
        } catch (error: SQLException) {
            // SQLite has already rolled back, as it does when the disk is full.
            reason.addSuppressed(error)
        }
    }

    public companion object {
        private const val BUSY_TIMEOUT_MS = 2500
        private const val TEMPORARY = "org.sqlite.tmpdir"

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
                library
                val config = SQLiteConfig()
                config.setJournalMode(SQLiteConfig.JournalMode.WAL)
                config.setSynchronous(if (isDurable) SynchronousMode.FULL else SynchronousMode.NORMAL)
                config.busyTimeout = BUSY_TIMEOUT_MS
                JdbcDatabase(file, config.createConnection("jdbc:sqlite:${file.path}"))
            }

        /**
         * SQLite's own code, loaded from a folder that no other process uses and that is gone at once.
         *
         * From the shared folder for temporary files the driver deletes what killed processes have left there, and
         * writes an error to stderr where another process deletes the same file first.
         */
        private val library by lazy<Unit> {
            val folder = Files.createTempDirectory("fedlens-sqlite").toFile()
            val before = System.setProperty(TEMPORARY, folder.path)
            try {
                SQLiteJDBCLoader.initialize()
            } finally {
                if (before == null) System.clearProperty(TEMPORARY) else System.setProperty(TEMPORARY, before)
                folder.deleteRecursively()
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

        private fun reason(error: SQLException): Reason {
            val code = (error as? SQLiteException)?.resultCode?.code ?: return Reason.DAMAGED
            return when (code and PRIMARY_CODE) {
                SQLiteErrorCode.SQLITE_FULL.code,
                SQLiteErrorCode.SQLITE_IOERR.code,
                SQLiteErrorCode.SQLITE_READONLY.code,
                SQLiteErrorCode.SQLITE_CANTOPEN.code,
                SQLiteErrorCode.SQLITE_PERM.code,
                SQLiteErrorCode.SQLITE_NOMEM.code,
                -> Reason.NOT_WRITABLE
                SQLiteErrorCode.SQLITE_BUSY.code, SQLiteErrorCode.SQLITE_LOCKED.code -> Reason.IN_USE
                else -> Reason.DAMAGED
            }
        }

        // Extended codes have more information in their upper bits.
        private const val PRIMARY_CODE = 0xff
    }
}

private class JdbcStatements(
    private val connection: Connection,
) : Statements {
    override fun run(
        sql: String,
        vararg arguments: Any?,
    ) {
        prepared(sql, arguments) { it.execute() }
    }

    override fun <T> query(
        sql: String,
        vararg arguments: Any?,
        row: (Row) -> T,
    ): List<T> =
        prepared(sql, arguments) { statement ->
            statement.executeQuery().use { result ->
                val current = JdbcRow(result)
                val rows = ArrayList<T>()
                while (result.next()) rows += row(current)
                rows
            }
        }

    private fun <T> prepared(
        sql: String,
        arguments: Array<out Any?>,
        use: (PreparedStatement) -> T,
    ): T =
        connection.prepareStatement(sql).use { statement ->
            arguments.forEachIndexed { index, argument ->
                when (argument) {
                    null -> statement.setObject(index + 1, null)
                    is Long -> statement.setLong(index + 1, argument)
                    is Double -> statement.setDouble(index + 1, argument)
                    is String -> statement.setString(index + 1, argument)
                    is ByteArray -> statement.setBytes(index + 1, argument)
                    else -> throw IllegalArgumentException("argument ${index + 1} is a ${argument.javaClass.name}")
                }
            }
            use(statement)
        }
}

private class JdbcRow(
    private val result: ResultSet,
) : Row {
    override fun isNull(column: Int): Boolean = result.getObject(column + 1) == null

    override fun long(column: Int): Long = result.getLong(column + 1)

    override fun double(column: Int): Double = result.getDouble(column + 1)

    override fun text(column: Int): String = result.getString(column + 1)

    override fun bytes(column: Int): ByteArray = result.getBytes(column + 1)
}
