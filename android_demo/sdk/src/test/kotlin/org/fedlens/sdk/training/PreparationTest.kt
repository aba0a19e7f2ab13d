package org.fedlens.sdk.training

import com.google.protobuf.ByteString
import org.fedlens.jvm.JdbcDatabase
import org.fedlens.sdk.AlbumEntry
import org.fedlens.sdk.KeyedHash
import org.fedlens.sdk.album.Features
import org.fedlens.sdk.album.PhotoBytes
import org.fedlens.sdk.photo.PhotoDecoder
import org.fedlens.sdk.sha256
import org.fedlens.sdk.store.FeatureCache
import org.fedlens.sdk.store.FeatureSpace
import org.junit.After
import org.junit.Assert.assertArrayEquals
import org.junit.Assert.assertEquals
import org.junit.Assert.assertNull
import org.junit.Assert.assertThrows
import org.junit.Rule
import org.junit.Test
import org.junit.rules.TemporaryFolder
import java.io.File

class PreparationTest {
    @get:Rule
    val folder = TemporaryFolder()

    private val cache by lazy {
        FeatureCache(File(folder.root, "features.sqlite3"), 1 shl 30, { JdbcDatabase.open(it) })
    }
    private val album by lazy { TestAlbum(folder.newFolder()) }
    private val engine by lazy { SummingEngine(SummingBundle().write(folder.newFolder())) }
    private val viewing by lazy { SummingEngine(SummingBundle(views = 2, storedViews = 4).write(folder.newFolder())) }

    @After
    fun close() = cache.close()

    private fun preparation(
        engine: SummingEngine = this.engine,
        onlyTest: Boolean = false,
        decoder: PhotoDecoder = OneColour,
        onPhoto: (Int, Int) -> Unit = { _, _ -> },
    ) = Preparation(album.examples(), engine, decoder, cache, onlyTest, onPhoto)

    @Test
    fun `rows are sorted by digest and hold features and labels`() {
        album.add("cat", 6)
        album.add("dog", 4)
        val found = preparation().photos(SEED)
        assertEquals(found.train.entries.sorted(), found.train.entries)
        assertEquals(9 to 1, found.train.size to found.test.size)
        // Cats are red, dogs blue.
        for (row in 0 until 9) {
            val isCat = found.train.rows.labels[row] == 0L
            assertEquals(if (isCat) 1f else 0f, found.train.rows.inputs[3 * row], 0f)
        }
        assertEquals(4, found.train.rows.labels.sum())
        assertNull(found.train.rows.views)
    }

    @Test
    fun `photos are embedded once, and new ones when they appear`() {
        album.add("cat", 70)
        val seen = ArrayList<Pair<Int, Int>>()
        val first = preparation { done, total -> seen += done to total }.photos(SEED)
        album.add("dog", 3)
        val second = preparation { done, total -> seen += done to total }.photos(SEED)
        assertEquals((1..70).map { it to 70 } + (1..3).map { it to 3 }, seen)
        assertEquals(73, engine.embedded)
        assertEquals(0, preparation().embed())
        val row = second.train.entries.indexOf(first.train.entries[0])
        assertArrayEquals(
            first.train.rows.inputs.copyOf(3),
            second.train.rows.inputs.copyOfRange(3 * row, 3 * row + 3),
            0f,
        )
    }

    @Test
    fun `what is embedded when a photo arrives is not again when a round begins`() {
        album.add("cat", 5)
        assertEquals(5, preparation(viewing).embed())
        val embedded = viewing.embedded
        // One of five is a test photo; of each other one four views are embedded.
        assertEquals(5 + 4 * 4, embedded)
        preparation(viewing).photos(SEED)
        assertEquals(embedded, viewing.embedded)
    }

    @Test
    fun `copies of a photo are rows of their own, embedded once`() {
        val content = OneColour.content(1, 2, 3, 4)
        album.add("cat", "a.bmp", content)
        album.add("dog", "b.bmp", content)
        val found = preparation().photos(SEED)
        assertEquals(listOf(0, 1), found.train.entries.map { it.copy })
        assertArrayEquals(longArrayOf(0, 1), found.train.rows.labels)
        assertEquals(1, engine.embedded)
    }

    @Test
    fun `an evaluator's photos are all test photos, without views`() {
        album.add("cat", 5)
        val found = preparation(viewing, onlyTest = true).photos(SEED)
        assertEquals(0 to 5, found.train.size to found.test.size)
        assertEquals(0, viewing.viewed)
        assertNull(found.test.rows.views)
    }

    @Test
    fun `bytes and features from elsewhere are rows like those of files`() {
        val content = OneColour.content(255, 0, 0, 1)
        val bytes = PhotoBytes(AlbumEntry(sha256(content)), "cat", "one", isTest = false) { content }
        val features = Features("dog", "two", floatArrayOf(0.25f, 0.5f, 0.75f), isTest = false)
        album.others += listOf(bytes, features)
        val found = preparation().photos(SEED)
        assertEquals(listOf(bytes.entry, features.entry).sorted(), found.train.entries)
        val rows = found.train.rows.inputs.toList().chunked(3)
        val expected = mapOf(bytes.entry to listOf(1f, 0f, 0f), features.entry to listOf(0.25f, 0.5f, 0.75f))
        assertEquals(found.train.entries.map(expected::get), rows)
        assertEquals(1, engine.embedded)
        assertEquals(0, preparation().embed())
    }

    @Test
    fun `features have a digest of their values, which says whether they are for tests`() {
        val some = List(50) { Features("cat", "$it", floatArrayOf(it.toFloat(), 0f, 0f)) }
        assertEquals(some.map { KeyedHash.isTestPhoto(it.entry.photo) }, some.map { it.isTest })
        assertEquals(setOf(true, false), some.map { it.isTest }.toSet())
        // float32, little endian: 1 is 00 00 80 3f.
        val one = sha256(byteArrayOf(0, 0, 0x80.toByte(), 0x3f) + ByteArray(8))
        assertArrayEquals(one, some[1].entry.photo)
    }

    @Test
    fun `features that the model does not take are left out, and so are those that need views`() {
        album.others += Features("cat", "short", floatArrayOf(1f), isTest = false)
        album.others += Features("cat", "odd", floatArrayOf(1f, Float.NaN, 1f), isTest = false)
        album.others += Features("cat", "good", floatArrayOf(1f, 1f, 1f), isTest = false)
        album.others += Features("dog", "test", floatArrayOf(1f, 1f, 2f), isTest = true)
        val unfit = Preparation.UNFIT to listOf("cat/odd", "cat/short")
        assertEquals(mapOf(unfit), preparation().photos(SEED).skipped)
        val found = preparation(viewing).photos(SEED)
        assertEquals(mapOf(unfit, Preparation.NO_VIEWS to listOf("cat/good")), found.skipped)
        assertEquals(0 to 1, found.train.size to found.test.size)
    }

    @Test
    fun `photos that cannot be used are left out and named by reason`() {
        album.skipped = mapOf("HEIC photos" to listOf("phone.heic"))
        album.add("cat", 2)
        album.add("horse", 1)
        album.add("cat", "text.jpg", "no photo".toByteArray())
        album.add("cat", "broken.bmp", "BM".toByteArray())
        album.add("dog", "changed.bmp", OneColour.content(0, 0, 9, 1)).file.writeBytes(OneColour.content(0, 0, 9, 2))
        album.add("dog", "gone.bmp", OneColour.content(0, 0, 9, 3)).file.delete()
        val found = preparation().photos(SEED)
        assertEquals(
            mapOf(
                "HEIC photos" to listOf("phone.heic"),
                "class 'horse' is not in the model" to listOf("horse/0.bmp"),
                Preparation.UNREADABLE to listOf("cat/broken.bmp", "cat/text.jpg"),
                Preparation.CHANGED to listOf("dog/changed.bmp", "dog/gone.bmp"),
            ),
            found.skipped,
        )
        assertEquals(2, found.train.size)
    }

    @Test
    fun `a photo that takes more memory than there is does not end the others`() {
        album.add("cat", 3)
        val huge = album.photos[1].file.readBytes()
        val decoder =
            PhotoDecoder { content ->
                if (content.contentEquals(huge)) throw OutOfMemoryError("the test's")
                OneColour.decode(content)
            }
        val found = preparation(decoder = decoder).photos(SEED)
        assertEquals(mapOf(Preparation.TOO_LARGE to listOf("cat/1.bmp")), found.skipped)
        assertEquals(2, found.train.size)
    }

    @Test
    fun `a training sees those stored views that its seed says`() {
        album.add("cat", 3)
        album.add("dog", 3)
        val train = preparation(viewing).photos(SEED).train
        val views = checkNotNull(train.rows.views)
        assertEquals(2 * 3, views.width)
        val taken = FloatArray(2 * views.width).also { views.take(intArrayOf(4, 1), it) }
        for ((place, row) in listOf(4, 1).withIndex()) {
            val photo = train.entries[row].photo
            val drawn =
                KeyedHash
                    .viewChoice(
                        SEED,
                        photo,
                        4,
                        2,
                    ).map { KeyedHash.viewUniforms(ByteArray(32), photo, it, 11) }
            // A view of SummingEngine is the photo times the first number that is drawn for it.
            val wanted = drawn.flatMap { uniforms -> (0 until 3).map { train.rows.inputs[3 * row + it] * uniforms[0] } }
            assertArrayEquals(wanted.toFloatArray(), taken.copyOfRange(6 * place, 6 * place + 6), 1e-6f)
        }
        val other = checkNotNull(preparation(viewing).photos(ByteArray(32)).train.rows.views)
        val all =
            listOf(views, other).map { one ->
                FloatArray(36).also { one.take(IntArray(6) { i -> i }, it) }.toList()
            }
        assertEquals(false, all[0] == all[1])
    }

    @Test
    fun `a photo that disappears while it is augmented is left out`() {
        album.add("cat", 3)
        val gone = album.photos[1]
        val bundle = viewing.bundle.manifest
        val space = FeatureSpace.of(bundle, Requirements.FORMAT)
        // Features are there, views are not.
        val keys = album.photos.map { ByteString.copyFrom(it.entry.photo) }
        cache.put(space, keys.associateWith { FloatArray(3).toBytes() })
        gone.file.delete()
        val found = preparation(viewing).photos(SEED)
        assertEquals(2, found.train.size)
        assertEquals(mapOf(Preparation.CHANGED to listOf("cat/1.bmp")), found.skipped)
    }

    @Test
    fun `what was embedded before an interruption is not embedded again`() {
        album.add("cat", 10)
        assertThrows(InterruptedException::class.java) {
            preparation { done, _ -> if (done == 7) throw InterruptedException() }.photos(SEED)
        }
        preparation().photos(SEED)
        assertEquals(10, engine.embedded)
    }
}
