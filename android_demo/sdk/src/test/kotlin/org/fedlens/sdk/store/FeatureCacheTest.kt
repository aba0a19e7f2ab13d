package org.fedlens.sdk.store

import com.google.protobuf.ByteString
import org.fedlens.jvm.JdbcDatabase
import org.fedlens.proto.v1.ProgramFormat
import org.fedlens.sdk.Bundle
import org.fedlens.sdk.Vectors
import org.fedlens.sdk.toHex
import org.junit.Assert.assertEquals
import org.junit.Rule
import org.junit.Test
import org.junit.rules.TemporaryFolder
import java.io.File

class FeatureCacheTest {
    @get:Rule
    val folder = TemporaryFolder()

    private val file by lazy { File(folder.root, "features.sqlite3") }
    private var day = 1L
    private lateinit var opened: Database
    private val space = byteArrayOf(1)
    private val other = byteArrayOf(2)

    private fun open(maxBytes: Long = 1L shl 20): FeatureCache {
        val openDatabase = { path: File -> JdbcDatabase.open(path).also { opened = it } }
        return FeatureCache(file, maxBytes, openDatabase) { day }
    }

    private fun photo(name: String) = ByteString.copyFromUtf8(name)

    private fun FeatureCache.put(
        vararg names: String,
        size: Int = 1,
    ) = put(space, names.associate { photo(it) to ByteArray(size) { _ -> it[0].code.toByte() } })

    private fun FeatureCache.found(
        vararg names: String,
        space: ByteArray = this@FeatureCacheTest.space,
    ): Map<String, Char> =
        get(space, names.map(::photo)).entries.associate { it.key.toStringUtf8() to it.value[0].toInt().toChar() }

    @Test
    fun `features are found by space and photo, also after the file was opened again`() {
        open().use { it.put("a", "b") }
        open().use { cache ->
            assertEquals(mapOf("a" to 'a'), cache.found("a", "c"))
            assertEquals(emptyMap<String, Char>(), cache.found("a", space = other))
            assertEquals(emptyMap<String, Char>(), cache.found())
        }
    }

    @Test
    fun `an empty value is a value`() {
        open().use { cache ->
            cache.put("a", size = 0)
            assertEquals(setOf(photo("a")), cache.get(space, listOf(photo("a"))).keys)
        }
    }

    @Test
    fun `a photo is forgotten in all spaces`() {
        open().use { cache ->
            cache.put("a", "b")
            cache.put(other, mapOf(photo("a") to byteArrayOf(1)))
            cache.forget(listOf(photo("a")))
            assertEquals(mapOf("b" to 'b'), cache.found("a", "b"))
            assertEquals(emptyMap<String, Char>(), cache.found("a", space = other))
        }
    }

    @Test
    fun `a damaged file is started anew`() {
        file.writeText("no database".repeat(1000))
        open().use { cache ->
            cache.put("a")
            assertEquals(mapOf("a" to 'a'), cache.found("a"))
        }
    }

    @Test
    fun `a file whose pages are damaged is started anew when that is found`() {
        open().use { it.put("a", "b", size = 100_000) }
        val raw = file.readBytes()
        raw.fill(7, 4096)
        file.writeBytes(raw)
        open().use { cache ->
            assertEquals(emptyMap<String, Char>(), cache.found("a"))
            cache.put("c")
            assertEquals(mapOf("c" to 'c'), cache.found("a", "b", "c"))
        }
    }

    @Test
    fun `a file of a newer version is started anew`() {
        JdbcDatabase.open(file).use { database -> database.transaction { it.run("PRAGMA user_version = 9") } }
        open().use { cache ->
            cache.put("a")
            assertEquals(mapOf("a" to 'a'), cache.found("a"))
        }
    }

    @Test
    fun `features beyond the limit go oldest use first`() {
        open(maxBytes = 220_000).use { cache ->
            for (name in listOf("b", "a", "c")) {
                cache.put(name, size = 60_000)
                day++
            }
            assertEquals(setOf("b"), cache.found("b").keys) // which is a use
            cache.put("d", size = 60_000)
            assertEquals(setOf("b", "c", "d"), cache.found("a", "b", "c", "d").keys)
        }
    }

    @Test
    fun `where there is no room nothing is stored, and nothing fails`() {
        open().use { cache ->
            cache.put("a")
            opened.transaction { db ->
                val pages = db.query("PRAGMA page_count") { it.long(0) }.single()
                db.query("PRAGMA max_page_count = $pages") { it.long(0) }
            }
            cache.put("b", size = 100_000)
            assertEquals(mapOf("a" to 'a'), cache.found("a", "b"))
        }
    }

    @Test
    fun `spaces are those of the Python client`() {
        // By fedlens_edge_client.training.features of the bundle of the vectors.
        val manifest = Bundle.open(Vectors.file("bundle")).manifest
        val format = ProgramFormat.PROGRAM_FORMAT_PTE
        assertEquals(SPACE, FeatureSpace.of(manifest, format).toHex())
        val later = manifest.toBuilder().setStoredViews(3)
        later.addPrograms(manifest.getPrograms(0).toBuilder().setName("view"))
        later.addPrograms(manifest.getPrograms(1).toBuilder().setName("extract"))
        assertEquals(STORED_VIEWS, FeatureSpace.storedViews(later.build(), format).toHex())
        assertEquals(EXTRACTED, FeatureSpace.extracted(later.build(), format, ByteArray(32)).toHex())
    }

    private companion object {
        const val SPACE = "4651c4f349268e1b0d5c2a851940f4944465c440a6b3c7cb1ad7ef5891db7d80"
        const val STORED_VIEWS = "73b71f24a3cd2aee8865a32381f145f48c7b36be356d8ea2ff2f1043b94c35bf"
        const val EXTRACTED = "18f1c5c372c6fd1e6c49dd5704c6d5734f9597f7157a6063fd5ee68972825fae"
    }
}
