package org.fedlens.sdk.store

import java.io.Closeable

/**
 * An SQLite file, opened by whatever the platform has for that. Write-ahead logging; a committed transaction outlives a
 * power failure.
 *
 * Faults are a [org.fedlens.sdk.StateException].
 */
public interface Database : Closeable {
    /** All or nothing, on the disk when this returns; not to be nested. Other threads wait for their turn. */
    public fun <T> transaction(block: (Statements) -> T): T
}

/**
 * What can be done within a transaction. Arguments are `null`, [Long], [Double], [String] or [ByteArray], in the order
 * of the question marks.
 */
public interface Statements {
    /** Runs a statement that returns no rows. */
    public fun run(
        sql: String,
        vararg arguments: Any?,
    )

    /** Runs a query and takes each row. */
    public fun <T> query(
        sql: String,
        vararg arguments: Any?,
        row: (Row) -> T,
    ): List<T>
}

/** One row of a result, valid while it is being taken; columns count from 0. */
public interface Row {
    /** Whether the column is NULL. */
    public fun isNull(column: Int): Boolean

    public fun long(column: Int): Long

    public fun double(column: Int): Double

    public fun text(column: Int): String

    public fun bytes(column: Int): ByteArray
}

/** The bytes of a column, or null where it is NULL. */
internal fun Row.bytesOrNull(column: Int): ByteArray? = if (isNull(column)) null else bytes(column)

/** The text of a column, or null where it is NULL. */
internal fun Row.textOrNull(column: Int): String? = if (isNull(column)) null else text(column)
