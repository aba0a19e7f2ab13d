package org.fedlens.sdk.training

import com.google.protobuf.ByteString
import org.fedlens.jvm.JdbcDatabase
import org.fedlens.sdk.AlbumEntry
import org.fedlens.sdk.EngineException
import org.fedlens.sdk.blob.BlobWriter
import org.fedlens.sdk.blob.FloatTensor
import org.fedlens.sdk.blob.Tensor
import org.fedlens.sdk.engine.Rows
import org.fedlens.sdk.sha256
import org.fedlens.sdk.store.FeatureCache
import org.junit.After
import org.junit.Assert.assertArrayEquals
import org.junit.Assert.assertEquals
import org.junit.Assert.assertThrows
import org.junit.Assert.assertTrue
import org.junit.Rule
import org.junit.Test
import org.junit.rules.TemporaryFolder
import java.io.File

class ExtractedTest {
    @get:Rule
    val folder = TemporaryFolder()

    private val cache by lazy {
        FeatureCache(File(folder.root, "features.sqlite3"), 1 shl 30, { JdbcDatabase.open(it) })
    }
    private val engine by lazy { SummingEngine(SummingBundle(concatenated = 2).write(folder.newFolder())) }

    // Maps a photo's three mean colours to two numbers.
    private val first = weights(1f, 0f, 0f, 0f, 2f, 0f)
    private val second = weights(0f, 0f, 1f, 1f, 1f, 1f)

    @After
    fun close() = cache.close()

    private fun weights(vararg values: Float): Map<String, Tensor> =
        mapOf("base.weight" to FloatTensor.of(listOf(2, 3), values))

    private fun extractor(tensors: Map<String, Tensor>) = Extractor(sha256(BlobWriter.encode(tensors))) { tensors }

    private fun unread(tensors: Map<String, Tensor>) =
        Extractor(sha256(BlobWriter.encode(tensors))) { error("read although nothing is to be computed") }

    /** Features are the first three bytes of the digest; the first half is trained on. */
    private fun photos(count: Int): PreparedPhotos {
        val entries = (0 until count).map { AlbumEntry(sha256("$it".toByteArray())) }.sorted()
        val half = count / 2
        return PreparedPhotos(photoSet(entries.take(half)), photoSet(entries.drop(half)), emptyMap())
    }

    private fun photoSet(entries: List<AlbumEntry>): PhotoSet {
        val inputs = entries.flatMap { entry -> entry.photo.take(3).map { (it.toInt() and 0xff).toFloat() } }
        return PhotoSet(entries, Rows(inputs.toFloatArray(), LongArray(entries.size) { it % 2L }))
    }

    private fun sideBySide(
        photos: PreparedPhotos,
        vararg extractors: Extractor?,
    ) = Extracted(engine, cache).sideBySide(photos, extractors.toList())

    @Test
    fun `rows are the extractors' outputs side by side and zeros for an absent one`() {
        val given = photos(10)
        val both = sideBySide(given, extractor(first), extractor(second))
        val without = sideBySide(given, null, extractor(second))
        val wanted = given.train.rows.inputs.toList().chunked(3).flatMap { (r, g, b) -> listOf(r, 2 * g, b, r + g + b) }
        assertEquals(wanted, both.train.rows.inputs.toList())
        val pairs = both.test.rows.inputs.toList().chunked(4).flatMap { listOf(0f, 0f) + it.drop(2) }
        assertEquals(pairs, without.test.rows.inputs.toList())
        assertArrayEquals(given.train.rows.labels, both.train.rows.labels)
        assertEquals(given.test.entries, both.test.entries)
    }

    @Test
    fun `outputs are computed once for each photo and extractor`() {
        val before = sideBySide(photos(10), extractor(first), null)
        val batches = engine.extracted
        val after = sideBySide(photos(10), unread(first), null)
        assertTrue(batches > 0)
        assertEquals(batches, engine.extracted)
        assertArrayEquals(before.train.rows.inputs, after.train.rows.inputs, 0f)
        sideBySide(photos(11), extractor(first), null)
        assertEquals(batches + 1, engine.extracted)
        sideBySide(photos(11), extractor(second), null)
        assertTrue(engine.extracted > batches + 1)
    }

    @Test
    fun `copies of a photo share an output, and no photo has none`() {
        val digest = ByteArray(32)
        val twins =
            PhotoSet(
                listOf(AlbumEntry(digest, 0), AlbumEntry(digest, 1)),
                Rows(FloatArray(6) { 1f }, longArrayOf(0, 1)),
            )
        val nothing = PhotoSet(emptyList(), Rows(FloatArray(0), LongArray(0)))
        val found = sideBySide(PreparedPhotos(twins, nothing, emptyMap()), extractor(first), null)
        assertEquals(listOf(1f, 2f, 0f, 0f, 1f, 2f, 0f, 0f), found.train.rows.inputs.toList())
        assertEquals(0, found.test.rows.inputs.size)
    }

    @Test
    fun `a photo stands at the same place of a batch whichever others are new`() {
        val digests = photos(200).train.entries.map { ByteString.copyFrom(it.photo) }
        val everywhere = Extracted.placed(digests, 4)
        val few = Extracted.placed(digests.filterIndexed { i, _ -> i % 7 == 0 }, 4)
        val places = everywhere.flatMap { it.entries }.associate { it.value to it.key }
        assertEquals(digests.toSet(), places.keys)
        assertTrue(few.all { one -> one.all { (place, digest) -> places[digest] == place } })
        // No batch is begun before one that has the place free: as many batches as photos at the fullest place.
        assertEquals(places.values.groupingBy { it }.eachCount().values.max(), everywhere.size)
    }

    @Test
    fun `an extractor that does not fit ends the work, and so does who is asked between two batches`() {
        val unfit = mapOf("other" to FloatTensor.of(listOf(1), FloatArray(1)))
        val error = assertThrows(EngineException::class.java) { sideBySide(photos(3), extractor(unfit), null) }
        assertEquals("tensor 'base.weight' is missing from the extractor", error.message)
        assertThrows(InterruptedException::class.java) {
            Extracted(engine, cache) { throw InterruptedException() }.sideBySide(photos(3), listOf(extractor(first)))
        }
    }
}
