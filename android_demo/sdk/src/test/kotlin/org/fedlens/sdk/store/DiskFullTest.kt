package org.fedlens.sdk.store

import org.fedlens.jvm.JdbcDatabase
import org.fedlens.sdk.StateException
import org.fedlens.sdk.album.PhotoAlbum
import org.junit.Assert.assertEquals
import org.junit.Rule
import org.junit.Test
import org.junit.rules.TemporaryFolder
import java.io.File

private const val LIMIT_BYTES = 4 shl 20

/** A full disk, imitated by a limit on the size of files. */
fun main(arguments: Array<String>) {
    val folder = File(arguments.single())
    val photo = "BM".toByteArray() + ByteArray(LIMIT_BYTES + 1)
    Stores(folder) { JdbcDatabase.open(it) }.use { stores ->
        val attempts =
            listOf<() -> Unit>(
                { stores.files.store(tensors(1, LIMIT_BYTES / 4 + 1), Stores.F32) },
                { stores.album.add(photo, "large.bmp") },
            )
        for (attempt in attempts) {
            try {
                attempt()
                println("no error")
            } catch (error: StateException) {
                println(error.reason)
            }
        }
        stores.run(Step.Put(1, 1, upload = true, state = true, large = true))
        stores.run(Step.Add(1, "cat"))
    }
}

class DiskFullTest {
    @get:Rule
    val folder = TemporaryFolder()

    @Test
    fun `what the system has no room for leaves nothing half written, and what is smaller is stored`() {
        // In units of 512 bytes; the library of SQLite, which is unpacked into a file, is smaller.
        val limit = "ulimit -f ${LIMIT_BYTES / 512}"
        val process = childJvm("org.fedlens.sdk.store.DiskFullTestKt", folder.root.path, limit = limit)
        val said = process.inputStream.bufferedReader().readLines()
        assertEquals(listOf("NOT_WRITABLE", "NOT_WRITABLE"), said)
        assertEquals(0, process.waitFor())
        Stores(folder.root) { JdbcDatabase.open(it) }.use { stores ->
            assertEquals(setOf(1, -1), stores.snapshot().largeValues)
            assertEquals(listOf(1), stores.snapshot().photos.map { it.second })
        }
        assertEquals(1, PhotoAlbum.open(File(folder.root, "album"), JdbcDatabase::open).use { it.all().size })
    }
}
