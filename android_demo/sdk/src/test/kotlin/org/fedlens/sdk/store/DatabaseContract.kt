package org.fedlens.sdk.store

import com.google.protobuf.ByteString
import org.fedlens.jvm.JdbcDatabase
import org.fedlens.sdk.StateException
import org.fedlens.sdk.StateException.Reason
import org.junit.Assert.assertArrayEquals
import org.junit.Assert.assertEquals
import org.junit.Assert.assertThrows
import org.junit.Assert.assertTrue
import org.junit.Rule
import org.junit.Test
import org.junit.rules.TemporaryFolder
import org.junit.runner.RunWith
import org.robolectric.RobolectricTestRunner
import org.robolectric.annotation.Config
import org.robolectric.annotation.SQLiteMode
import java.io.File
import kotlin.concurrent.thread
import kotlin.random.Random

class JdbcDatabaseTest : DatabaseContract(JdbcDatabase.Companion::open)

@RunWith(RobolectricTestRunner::class)
@Config(sdk = [35])
@SQLiteMode(SQLiteMode.Mode.NATIVE)
class AndroidDatabaseTest : DatabaseContract(AndroidDatabase.Companion::open)

/** The contract of every platform's database, and of the stores on it where platforms differ most. */
abstract class DatabaseContract(
    private val openFile: (File, Boolean) -> Database,
) {
    @get:Rule
    val folder = TemporaryFolder()

    private val file by lazy { File(folder.root, "a.sqlite3") }

    private fun open() = openFile(file, true)

    @Test
    fun `what was committed is there when the file is opened again`() {
        open().use { database ->
            database.transaction { it.run("CREATE TABLE t (a, b, c, d, e)") }
            database.transaction {
                it.run("INSERT INTO t VALUES (?, ?, ?, ?, ?)", Long.MIN_VALUE, 0.1, "ä", byteArrayOf(0, -1), null)
            }
        }
        val found =
            open().use { database ->
                database.transaction { db ->
                    db.query("SELECT * FROM t WHERE d = ? AND a = ?", byteArrayOf(0, -1), Long.MIN_VALUE) {
                        listOf(it.long(0), it.double(1), it.text(2), it.bytes(3).toList(), it.isNull(4), it.isNull(0))
                    }
                }
            }
        assertEquals(listOf(listOf(Long.MIN_VALUE, 0.1, "ä", listOf<Byte>(0, -1), true, false)), found)
    }

    @Test
    fun `a transaction whose block throws changes nothing, and the next one goes on`() {
        open().use { database ->
            database.transaction { it.run("CREATE TABLE t (a)") }
            assertThrows(InterruptedException::class.java) {
                database.transaction<Unit> {
                    it.run("INSERT INTO t VALUES (1)")
                    throw InterruptedException()
                }
            }
            database.transaction { it.run("INSERT INTO t VALUES (2)") }
            assertEquals(listOf(2L), database.transaction { db -> db.query("SELECT a FROM t") { it.long(0) } })
        }
    }

    @Test
    fun `transactions survive a power failure where they shall`() {
        for ((isDurable, synchronous) in listOf(true to 2L, false to 1L)) { // FULL and NORMAL
            openFile(file, isDurable).use { database ->
                val found =
                    database.transaction { db ->
                        val journal = db.query("PRAGMA journal_mode") { it.text(0) }.single()
                        journal to db.query("PRAGMA synchronous") { it.long(0) }.single()
                    }
                assertEquals("wal" to synchronous, found)
            }
        }
    }

    @Test
    fun `threads take turns, and none loses what another one adds`() {
        open().use { database ->
            database.transaction { it.run("CREATE TABLE t (a)") }
            database.transaction { it.run("INSERT INTO t VALUES (0)") }
            val threads =
                List(4) {
                    thread {
                        repeat(10) {
                            database.transaction { db ->
                                val before = db.query("SELECT a FROM t") { it.long(0) }.single()
                                db.run("UPDATE t SET a = ?", before + 1)
                            }
                        }
                    }
                }
            threads.forEach { it.join() }
            assertEquals(40L, database.transaction { db -> db.query("SELECT a FROM t") { it.long(0) }.single() })
        }
    }

    @Test
    fun `a full disk is named, and nothing of the transaction stays`() {
        open().use { database ->
            database.transaction { it.run("CREATE TABLE t (a)") }
            database.transaction { db -> db.query("PRAGMA max_page_count = 8") { it.long(0) } }
            val error =
                assertThrows(StateException::class.java) {
                    database.transaction { db -> repeat(20) { db.run("INSERT INTO t VALUES (?)", ByteArray(4000)) } }
                }
            assertEquals(Reason.NOT_WRITABLE, error.reason)
            assertTrue(error.message, error.message!!.startsWith("$file cannot be used: "))
            assertEquals(0L, database.transaction { db -> db.query("SELECT count(*) FROM t") { it.long(0) }.single() })
            database.transaction { it.run("INSERT INTO t VALUES (1)") }
        }
    }

    @Test
    fun `a file that is no database is named and left alone`() {
        val bytes = "no database at all".repeat(1000).toByteArray()
        file.writeBytes(bytes)
        val error =
            assertThrows(StateException::class.java) {
                open().use { database -> database.transaction { db -> db.query("SELECT * FROM sqlite_master") { } } }
            }
        assertEquals(Reason.DAMAGED, error.reason)
        assertTrue(error.message, error.message!!.startsWith("$file cannot be used: "))
        assertArrayEquals(bytes, file.readBytes())
    }

    @Test
    fun `a closed database says so`() {
        val database = open()
        database.close()
        val error = assertThrows(StateException::class.java) { database.transaction { } }
        assertEquals("$file cannot be used: it is closed", error.message)
    }

    @Test
    fun `a folder in the place of the file is named`() {
        file.mkdir()
        val error = assertThrows(StateException::class.java) { open().close() }
        assertEquals(Reason.NOT_WRITABLE, error.reason)
    }

    @Test
    fun `values larger than a window of Android are cached whole, many at a time`() {
        val values = (1..5).associate { ByteString.copyFromUtf8("photo $it") to Random(it).nextBytes(it * 700_000) }
        FeatureCache(file, 64L shl 20, { openFile(it, true) }).use { cache ->
            cache.put(byteArrayOf(1), values)
            val found = cache.get(byteArrayOf(1), values.keys)
            assertEquals(values.keys, found.keys)
            values.forEach { (photo, value) -> assertArrayEquals(value, found[photo]) }
        }
    }

    @Test
    fun `a script of random steps leaves what the model says`() {
        val script = Script(seed = 1, steps = 40)
        Stores(folder.root) { openFile(it, true) }.use { stores ->
            script.steps.forEachIndexed { index, step ->
                stores.run(step)
                assertEquals("after step $index, $step", script.snapshots[index + 1], stores.snapshot())
            }
        }
    }
}
