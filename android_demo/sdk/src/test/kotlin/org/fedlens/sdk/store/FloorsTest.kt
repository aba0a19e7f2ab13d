package org.fedlens.sdk.store

import org.fedlens.jvm.JdbcDatabase
import org.junit.Assert.assertEquals
import org.junit.Assert.assertFalse
import org.junit.Assert.assertTrue
import org.junit.Rule
import org.junit.Test
import org.junit.rules.TemporaryFolder
import java.io.File
import kotlin.concurrent.thread

class FloorsTest {
    @get:Rule
    val folder = TemporaryFolder()

    private val file by lazy { File(folder.root, "app/floors.sqlite3") }
    private val publisher = ByteArray(32)

    private fun open() = Floors.open(file) { JdbcDatabase.open(it) }

    @Test
    fun `floors belong to a publisher and a name, never fall, and stay when the file is closed`() {
        open().use { floors ->
            floors.raise(publisher, "animals", 5)
            floors.raise(publisher, "animals", 3)
            floors.raise(publisher, "plants", 1)
            floors.noteUse(byteArrayOf(1))
            floors.noteUse(byteArrayOf(1))
        }
        open().use { floors ->
            assertEquals(5L, floors.of(publisher, "animals"))
            assertEquals(1L, floors.of(publisher, "plants"))
            assertEquals(0L, floors.of(ByteArray(32) { 1 }, "animals"))
            assertTrue(floors.hasUsed(byteArrayOf(1)))
            assertFalse(floors.hasUsed(byteArrayOf(2)))
        }
    }

    @Test
    fun `of two clients at once the greater floor wins`() {
        open().use { one ->
            open().use { other ->
                val clients =
                    listOf(one to (1L..99L step 2), other to (0L..98L step 2)).map { (floors, values) ->
                        thread { values.forEach { floors.raise(publisher, "animals", it) } }
                    }
                clients.forEach { it.join() }
                assertEquals(99L to 99L, one.of(publisher, "animals") to other.of(publisher, "animals"))
            }
        }
    }
}
