package org.fedlens.sdk.album

import kotlinx.coroutines.runBlocking
import org.fedlens.jvm.JdbcDatabase
import org.fedlens.sdk.KeyedHash
import org.fedlens.sdk.PhotoException
import org.fedlens.sdk.StateException
import org.fedlens.sdk.StateException.Reason
import org.fedlens.sdk.Vectors
import org.fedlens.sdk.sha256
import org.fedlens.sdk.store.Database
import org.fedlens.sdk.store.assertInUse
import org.fedlens.sdk.store.assertReason
import org.fedlens.sdk.toHex
import org.junit.After
import org.junit.Assert.assertArrayEquals
import org.junit.Assert.assertEquals
import org.junit.Assert.assertFalse
import org.junit.Assert.assertNull
import org.junit.Assert.assertThrows
import org.junit.Assert.assertTrue
import org.junit.Before
import org.junit.Rule
import org.junit.Test
import org.junit.rules.TemporaryFolder
import java.io.File

class PhotoAlbumTest {
    @get:Rule
    val folder = TemporaryFolder()

    private lateinit var album: PhotoAlbum
    private val heic = "0000ftypheic one".toByteArray()
    private val jpeg = Vectors.bytes("photos/colour.jpg")

    @Before
    fun open() {
        album = PhotoAlbum.open(folder.root, { 1234 }, ::jpegOf, JdbcDatabase::open)
    }

    @After
    fun close() {
        album.close()
    }

    /** Decodes one photo, as a platform does that has the decoder. */
    private fun jpegOf(heic: ByteArray) = jpeg.takeIf { heic.contentEquals(this.heic) }

    private fun reopen() {
        close()
        open()
    }

    private fun photo(number: Int) = "BM photo number $number".toByteArray()

    private fun files() = checkNotNull(File(folder.root, "photos").list()).toSet()

    private fun labels() = album.all().map { it.name to it.label }

    private fun find(id: Long) = album.all().firstOrNull { it.id == id }

    @Test
    fun `a photo is copied, known by its content and there after the album was opened again`() {
        val added = album.add(photo(1), "one.bmp")
        reopen()
        val found = checkNotNull(find(added.id))
        assertArrayEquals(photo(1), found.file.readBytes())
        assertArrayEquals(sha256(photo(1)), found.sha256)
        assertEquals(
            listOf("one.bmp", null, null, 0.0, 1234L),
            found.run { listOf(name, label, suggested, probability, addedAtMs) },
        )
        assertEquals(KeyedHash.isTestPhoto(sha256(photo(1))), found.isTest)
    }

    @Test
    fun `of a HEIC photo a JPEG is stored, and one that the platform cannot decode is refused`() {
        val added = album.add(heic, "IMG_1.HEIC")
        assertArrayEquals(jpeg, added.file.readBytes())
        assertArrayEquals(sha256(jpeg), added.sha256)
        val other = "0000ftypheic two".toByteArray()
        val error = assertThrows(PhotoException::class.java) { album.add(other, "IMG_2.HEIC") }
        assertEquals(PhotoException.Reason.HEIC, error.reason)
        assertEquals(listOf("IMG_1.HEIC" to null), labels())
    }

    @Test
    fun `all photos are listed newest first, and a snapshot has those with a class`() {
        album.add(photo(1), "1", "cat")
        val second = album.add(photo(2), "2")
        album.add(photo(3), "3", "cat")
        assertEquals(listOf("3" to "cat", "2" to null, "1" to "cat"), labels())
        assertEquals(2, album.examples().labelled.size)

        album.label(second.id, "dog")
        assertEquals(listOf("3" to "cat", "2" to "dog", "1" to "cat"), labels())
        assertEquals(listOf("cat", "cat", "dog"), album.examples().labelled.map { it.label }.sorted())
        album.label(second.id, null)
        assertEquals(listOf("3" to "cat", "2" to null, "1" to "cat"), labels())
    }

    @Test
    fun `a suggestion is kept beside the label that the owner gives`() {
        val id = album.add(photo(1), "1").id
        album.suggest(id, "cat", 0.75)
        album.label(id, "dog")
        val found = checkNotNull(find(id))
        assertEquals(listOf("dog", "cat", 0.75), listOf(found.label, found.suggested, found.probability))
    }

    @Test
    fun `equal photos are distinguished by their copy, in the order of class and file name, and share one file`() {
        // As FolderAlbum of the Python client numbers cat/0.png, cat/again.png and dog/same.png.
        album.add(photo(1), "same.png", "dog")
        album.add(photo(1), "again.png", "cat")
        val first = album.add(photo(1), "0.png", "cat")
        album.add(photo(1), "no class")
        assertEquals(
            listOf(0 to "cat", 1 to "cat", 2 to "dog"),
            album.examples().labelled.map { it.entry.copy to it.label },
        )
        assertEquals(1, files().size)

        album.delete(first.id)
        assertEquals(listOf(0 to "cat", 1 to "dog"), album.examples().labelled.map { it.entry.copy to it.label })
        assertEquals(1, files().size)
    }

    @Test
    fun `a snapshot is sorted, and keeps aside one photo in five by its content`() {
        repeat(60) { album.add(photo(it), "$it", "cat") }
        val photos = album.examples().labelled
        assertEquals(photos.map { it.entry }.sorted(), photos.map { it.entry })
        assertEquals(photos.map { KeyedHash.isTestPhoto(it.entry.photo) }, photos.map { it.isTest })
        assertTrue(photos.count { it.isTest } in 4..20)
    }

    @Test
    fun `what is no photo is refused with its reason, and leaves nothing`() {
        val heic = assertThrows(PhotoException::class.java) { album.add("xxxxftypheic".toByteArray(), "a") }
        assertEquals(PhotoException.Reason.HEIC, heic.reason)
        val text = assertThrows(PhotoException::class.java) { album.add("text".toByteArray(), "a") }
        assertEquals(PhotoException.Reason.UNKNOWN_FORMAT, text.reason)
        assertEquals(0, album.all().size)
        assertEquals(emptySet<String>(), files())
    }

    @Test
    fun `a deleted photo is gone with its file, and what was computed of it is reported to be deleted`() {
        val deleted = ArrayList<String>()
        album.onDeleted { deleted += taken() }
        val (one, two) = listOf(1, 2).map { album.add(photo(it), "$it", "cat") }
        album.delete(one.id)
        assertEquals(listOf(one.sha256.toHex()), deleted)
        assertNull(find(one.id))
        assertEquals(setOf(two.sha256.toHex()), files())
        album.add(photo(3), "3")
        album.deleteAll()
        assertEquals(3, deleted.size)
        assertEquals(emptySet<String>(), files())
        assertEquals(0, album.all().size)
    }

    @Test
    fun `a listener added later hears of all deleted photos, but for those added again`() {
        val deleted = ArrayList<List<String>>()
        val ids = (1..3).map { album.add(photo(it), "$it").id }
        album.delete(ids[0])
        album.delete(ids[1])
        album.add(photo(2), "2")
        reopen()
        val full = StateException(Reason.NOT_WRITABLE, "not now")
        assertEquals(full, assertThrows(StateException::class.java) { taken { throw full } })
        album.onDeleted { deleted += taken() }
        album.onDeleted(null)
        album.delete(ids[2])
        album.onDeleted { deleted += taken() }
        album.onDeleted { deleted += taken() }
        assertEquals(listOf(listOf(sha256(photo(1)).toHex()), listOf(sha256(photo(3)).toHex())), deleted)
    }

    /** Digests of deleted photos, taken with what [then] does. */
    private fun taken(then: () -> Unit = {}): List<String> {
        val found = ArrayList<String>()
        runBlocking {
            album.takeDeleted { digests ->
                then()
                found += digests.map { it.toHex() }
            }
        }
        return found
    }

    @Test
    fun `a photo that is still there as another copy is not reported to be deleted`() {
        var calls = 0
        album.onDeleted { calls++ }
        val first = album.add(photo(1), "1")
        album.add(photo(1), "2")
        album.delete(first.id)
        assertEquals(0, calls)
        assertTrue(first.file.exists())
    }

    @Test
    fun `a file without a row and a row without a file, as a crash leaves them, are gone after the next opening`() {
        val kept = album.add(photo(1), "1")
        val lost = album.add(photo(2), "2")
        lost.file.delete()
        File(folder.root, "photos/" + sha256(photo(3)).toHex()).writeBytes(photo(3))
        File(folder.root, "photos/new").writeText("half")
        reopen()
        assertEquals(setOf(kept.sha256.toHex()), files())
        assertEquals(listOf(kept.id), album.all().map { it.id })
    }

    @Test
    fun `an album is open once at a time`() {
        assertInUse { PhotoAlbum.open(folder.root, JdbcDatabase::open).close() }
        reopen()
    }

    @Test
    fun `a newer album is refused`() {
        album.close()
        val file = File(folder.root, "album.sqlite3")
        JdbcDatabase.open(file).use { database -> database.transaction { it.run("PRAGMA user_version = 2") } }
        val message = assertReason(Reason.NEWER_VERSION) { open() }
        assertTrue(message, "album.sqlite3 was written by a newer fedlens" in message)
    }

    @Test
    fun `where there is no room for the row the file does not stay either`() {
        album.close()
        var limited: Database? = null
        album = PhotoAlbum.open(folder.root) { file -> JdbcDatabase.open(file).also { limited = it } }
        checkNotNull(limited).transaction { db ->
            val pages = db.query("PRAGMA page_count") { it.long(0) }.single()
            db.query("PRAGMA max_page_count = $pages") { it.long(0) }
        }
        assertReason(Reason.NOT_WRITABLE) { album.add(photo(1), "n".repeat(100_000)) }
        assertEquals(emptySet<String>(), files())
        assertEquals(0, album.all().size)
        assertFalse(album.add(photo(1), "1").label == "cat")
    }
}
