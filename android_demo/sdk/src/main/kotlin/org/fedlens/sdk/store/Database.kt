package org.fedlens.sdk.store

import java.io.Closeable

/**
 * An SQLite file in write-ahead logging mode; a committed transaction survives a power failure.
 *
 * Failures are a [org.fedlens.sdk.StateException].
 */
public interface Database : Closeable {
    /**
     * Run [block] atomically; the result is on the disk when this returns. Do not nest transactions; other threads
     * wait.
     */
    public fun <T> transaction(block: (Statements) -> T): T
}

/**
 * The statements of a transaction. Arguments are `null`, [Long], [Double], [String] or [ByteArray], in the order of the
 * question marks.
 */
public interface Statements {
    /** Run a statement that returns no rows. */
    public fun run(
        sql: String,
        vararg arguments: Any?,
    )

    /** Run a query and map each row. */
    public fun <T> query(
        sql: String,
        vararg arguments: Any?,
        row: (Row) -> T,
    ): List<T>
}

/** A row of a result, valid only while it is mapped; columns count from 0. */
public interface Row {
    /** True if the column is NULL. */
    public fun isNull(column: Int): Boolean

    public fun long(column: Int): Long

    public fun double(column: Int): Double

    public fun text(column: Int): String

    public fun bytes(column: Int): ByteArray
}

/** The bytes of a column; null if it is NULL. */
internal fun Row.bytesOrNull(column: Int): ByteArray? = if (isNull(column)) null else bytes(column)

/** The text of a column; null if it is NULL. */
internal fun Row.textOrNull(column: Int): String? = if (isNull(column)) null else text(column)
