package org.fedlens.sdk.store

import org.fedlens.jvm.JdbcDatabase
import org.junit.rules.TemporaryFolder

/** Calls [point] before, after and between the statements of each transaction. */
internal class PointedDatabase(
    private val database: Database,
    private val name: String,
    private val point: (String) -> Unit,
) : Database by database {
    override fun <T> transaction(block: (Statements) -> T): T {
        point("the beginning of a transaction in $name")
        val result =
            database.transaction { db ->
                block(
                    object : Statements by db {
                        override fun run(
                            sql: String,
                            vararg arguments: Any?,
                        ) {
                            db.run(sql, *arguments)
                            point("'$sql' in $name")
                        }
                    },
                )
            }
        point("the end of a transaction in $name")
        return result
    }
}

/**
 * Halts some steps at their first point, at their second, and so on until they pass none, each time in a new folder.
 *
 * @param begin The steps, on stores that were just opened.
 * @param check Looks at the stores, opened anew, after a halt; it is also told the number of finished steps, and where
 *     they were halted.
 * @return The number of points.
 */
internal fun TemporaryFolder.haltAtEveryPoint(
    begin: (Stores) -> List<() -> Unit>,
    check: (Stores, done: Int, point: String) -> Unit,
): Int {
    class Halt : Error()
    var points = 0
    do {
        var left = ++points
        var halt = ""
        val root = newFolder("halted-$points")
        var isOpen = false
        val point = { name: String ->
            if (isOpen && --left == 0) {
                halt = "point $points, $name,"
                throw Halt()
            }
        }
        var done = 0
        try {
            Stores(root, point) { PointedDatabase(JdbcDatabase.open(it, false), it.name, point) }.use { stores ->
                val steps = begin(stores)
                isOpen = true
                for (step in steps) {
                    step()
                    done++
                }
            }
        } catch (_: Halt) {
            Stores(root) { JdbcDatabase.open(it) }.use { check(it, done, halt) }
        }
    } while (left <= 0)
    return points
}
