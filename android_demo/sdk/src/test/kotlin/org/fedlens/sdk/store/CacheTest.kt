package org.fedlens.sdk.store

import kotlinx.coroutines.CompletableDeferred
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.async
import kotlinx.coroutines.awaitAll
import kotlinx.coroutines.cancelAndJoin
import kotlinx.coroutines.launch
import kotlinx.coroutines.runBlocking
import org.fedlens.proto.v1.ProgramFormat
import org.fedlens.sdk.Bundle
import org.fedlens.sdk.StateException
import org.fedlens.sdk.TransportException
import org.fedlens.sdk.Vectors
import org.fedlens.sdk.sha256
import org.junit.Assert.assertArrayEquals
import org.junit.Assert.assertEquals
import org.junit.Assert.assertFalse
import org.junit.Assert.assertThrows
import org.junit.Assert.assertTrue
import org.junit.Rule
import org.junit.Test
import org.junit.rules.TemporaryFolder
import java.io.File
import java.io.IOException
import kotlin.random.Random

/** A source that counts fetches and can return wrong bytes a few times. */
private class Source(
    vararg contents: ByteArray,
    private var wrong: Int = 0,
) : Fetch {
    private val contents = contents.associateBy { sha256(it).toList() }
    var fetched = 0

    override suspend fun fetch(
        sha256: ByteArray,
        into: File,
        maxBytes: Long,
    ) {
        fetched++
        val raw = contents.getValue(sha256.toList())
        val missing = raw.copyOfRange(minOf(into.length().toInt(), raw.size), raw.size)
        into.appendBytes(if (wrong-- > 0) ByteArray(missing.size) { '?'.code.toByte() } else missing)
    }
}

class CacheTest {
    @get:Rule
    val folder = TemporaryFolder()

    private val abc = "abcdef".toByteArray()

    private fun cache(maxBytes: Long = 1000) = Cache(folder.root, maxBytes)

    private fun wanted(content: ByteArray) = Wanted(sha256(content), content.size.toLong())

    private fun incoming(content: ByteArray) = File(folder.root, "incoming/" + cache().file(sha256(content)).name)

    private fun incomingNames() = File(folder.root, "incoming").list()?.toList()

    private fun assertBadAnswer(work: suspend () -> Unit): String {
        val error = assertThrows(TransportException::class.java) { runBlocking { work() } }
        assertEquals(TransportException.Reason.BAD_ANSWER, error.reason)
        return error.message.orEmpty()
    }

    @Test
    fun `what is there is not fetched again, and is where a bundle looks for its parts`() =
        runBlocking {
            val bundle = Bundle.open(Vectors.file("bundle"))
            val part = bundle.part(bundle.manifest.initial.toByteArray()).readBytes()
            val source = Source(part)
            assertTrue(cache().obtain(wanted(part), fetch = source))
            assertFalse(cache().obtain(wanted(part), fetch = source))
            assertEquals(1, source.fetched)
            Vectors.file("bundle/manifest.pb").copyTo(File(folder.root, "manifest.pb"))
            val public = bundle.manifest.public.sha256.toByteArray()
            bundle.part(public).copyTo(cache().file(public))
            val formats = emptySet<ProgramFormat>()
            assertArrayEquals(bundle.initial().digest, Bundle.open(folder.root, formats).initial().digest)
        }

    @Test
    fun `those who need a blob at the same time fetch it once`() =
        runBlocking {
            val cache = cache()
            val source = Source(abc)
            val allWait = CompletableDeferred<Unit>()
            val fetched =
                List(3) {
                    async(Dispatchers.Default) {
                        cache.obtain(wanted(abc)) { sha256, into, most ->
                            allWait.await()
                            source.fetch(sha256, into, most)
                        }
                    }
                }
            allWait.complete(Unit)
            assertEquals(1, fetched.awaitAll().count { it })
            assertEquals(1, source.fetched)
        }

    @Test
    fun `a name that is no digest is refused`() {
        for (size in listOf(0, 5, 500)) {
            val message = assertBadAnswer { cache().obtain(Wanted(ByteArray(size), 3), fetch = Source()) }
            assertTrue(message, "named by $size bytes" in message)
        }
    }

    @Test
    fun `a folder that has become unusable is named`() {
        val cache = cache()
        File(folder.root, "incoming").delete()
        val error =
            assertThrows(StateException::class.java) {
                runBlocking { cache.obtain(wanted(abc), fetch = Source(abc)) }
            }
        assertEquals(StateException.Reason.NOT_WRITABLE, error.reason)
    }

    @Test
    fun `a full disk is named and leaves the beginning`() {
        val cache = cache()
        val error =
            assertThrows(StateException::class.java) {
                runBlocking {
                    cache.obtain(wanted(abc)) { _, into, _ ->
                        into.writeText("abc")
                        throw IOException("No space left on device")
                    }
                }
            }
        assertTrue(error.message, "No space left on device" in error.message.orEmpty())
        assertEquals("abc", incoming(abc).readText())
        assertFalse(runBlocking { cache.has(sha256(abc)) })
    }

    @Test
    fun `a download goes on from what is there`() =
        runBlocking {
            val cache = cache()
            incoming(abc).writeText("abc")
            val source = Source(abc)
            cache.obtain(wanted(abc)) { sha256, into, most ->
                assertEquals(3L, into.length())
                source.fetch(sha256, into, most)
            }
            assertArrayEquals(abc, cache.file(sha256(abc)).readBytes())
            assertEquals(emptyList<String>(), incomingNames())
        }

    @Test
    fun `a cancelled download leaves its beginning and lets the next one begin`() =
        runBlocking {
            val cache = cache()
            val begun = CompletableDeferred<Unit>()
            val download =
                launch(Dispatchers.Default) {
                    cache.obtain(wanted(abc)) { _, into, _ ->
                        into.writeText("abc")
                        begun.complete(Unit)
                        CompletableDeferred<Unit>().await()
                    }
                }
            begun.await()
            download.cancelAndJoin()
            assertEquals("abc", incoming(abc).readText())
            assertTrue(cache.obtain(wanted(abc), fetch = Source(abc)))
        }

    @Test
    fun `a damaged beginning is fetched anew`() =
        runBlocking {
            val cache = cache()
            incoming(abc).writeText("xyz")
            val source = Source(abc)
            cache.obtain(wanted(abc), fetch = source)
            assertEquals(2, source.fetched)
            assertArrayEquals(abc, cache.file(sha256(abc)).readBytes())
        }

    @Test
    fun `wrong bytes twice are an error and leave nothing`() {
        val message = assertBadAnswer { cache().obtain(wanted(abc), fetch = Source(abc, wrong = 2)) }
        assertTrue(message, "6 bytes with digest" in message)
        assertFalse(runBlocking { cache().has(sha256(abc)) })
        assertEquals(emptyList<String>(), incomingNames())
    }

    @Test
    fun `the right bytes of another length than announced are an error, unless that is the most`() {
        val longer = Wanted(sha256(abc), 7)
        assertBadAnswer { cache().obtain(longer, fetch = Source(abc)) }
        assertTrue(runBlocking { cache().obtain(longer, isExact = false, fetch = Source(abc)) })
    }

    @Test
    fun `a page instead of a blob leaves the beginning`() {
        incoming(abc).writeText("abc")
        assertBadAnswer {
            cache().obtain(wanted(abc)) { _, _, _ ->
                throw TransportException(TransportException.Reason.BAD_ANSWER, "<html>pay first")
            }
        }
        assertEquals("abc", incoming(abc).readText())
    }

    @Test
    fun `what had come completely when the process ended is not fetched again`() =
        runBlocking {
            val source = Source(abc)
            incoming(abc).writeBytes(abc)
            assertFalse(cache().obtain(wanted(abc), fetch = source))
            assertEquals(0, source.fetched)
            assertArrayEquals(abc, cache().file(sha256(abc)).readBytes())
            assertEquals(emptyList<String>(), incomingNames())
        }

    @Test
    fun `a damaged file of the right length is fetched from its first byte`() =
        runBlocking {
            for (damaged in listOf("abcdeX", "abcdefg")) {
                val source = Source(abc)
                incoming(abc).writeText(damaged)
                assertTrue(cache().obtain(wanted(abc), fetch = source))
                assertEquals(1, source.fetched)
                assertArrayEquals(abc, cache().file(sha256(abc)).readBytes())
                cache().file(sha256(abc)).delete()
            }
        }

    @Test
    fun `a file that was damaged on the disk is fetched again`() =
        runBlocking {
            cache().obtain(wanted(abc), fetch = Source(abc))
            cache().file(sha256(abc)).writeText("abcdeX")
            val later = cache()
            assertFalse(later.has(sha256(abc)))
            assertTrue(later.obtain(wanted(abc), fetch = Source(abc)))
            assertArrayEquals(abc, later.file(sha256(abc)).readBytes())
        }

    @Test
    fun `a shortcut spares the fetch if it gives the right bytes`() =
        runBlocking {
            val source = Source(abc)
            val digest = sha256(abc)
            val none = Wanted(digest, 6) { false }
            val wrong = Wanted(digest, 6) { true.also { _ -> it.writeText("xyz") } }
            val right = Wanted(digest, 6) { true.also { _ -> it.writeBytes(abc) } }
            for (each in listOf(none, wrong)) {
                assertTrue(cache().obtain(each, fetch = source))
                cache().file(digest).delete()
            }
            assertFalse(cache().obtain(right, fetch = source))
            assertArrayEquals(abc, cache().file(digest).readBytes())
            assertEquals(2, source.fetched)
        }

    @Test
    fun `what is held stays until it is let go of`() =
        runBlocking {
            val cache = cache(maxBytes = 1)
            Pins().use { pins ->
                assertFalse(cache.holdPresent(sha256(abc), pins))
                assertEquals(1, cache.hold(listOf(wanted(abc)), pins, Source(abc)).size)
                Pins().use { assertTrue(cache.holdPresent(sha256(abc), it)) }
                cache.trim()
                assertTrue(cache.has(sha256(abc)))
            }
            cache.trim()
            assertFalse(cache.has(sha256(abc)))
        }

    @Test
    fun `random steps leave what a simple model says`() =
        runBlocking {
            val random = Random(5)
            val contents = List(8) { n -> ByteArray(100 * (n + 1)) { n.toByte() } }
            val cache = cache(maxBytes = 1500)
            val source = Source(*contents.toTypedArray())
            val present = ArrayList<Int>() // least recently used first
            val held = ArrayList<Pair<Int, Pins>>()
            var misses = 0
            repeat(300) { step ->
                val which = random.nextInt(contents.size)
                val content = contents[which]
                when (random.nextInt(5)) {
                    0, 1 -> {
                        if (which !in present) misses++
                        assertEquals(which !in present, cache.obtain(wanted(content), fetch = source))
                        present.remove(which)
                        present += which
                    }
                    2 -> {
                        val pins = Pins()
                        assertEquals(which in present, cache.holdPresent(sha256(content), pins))
                        if (present.remove(which)) present += which
                        held += which to pins
                    }
                    3 -> held.removeFirstOrNull()?.second?.close()
                    else -> {
                        cache.trim()
                        val pinned = held.map { it.first }
                        var excess = present.sumOf { contents[it].size } - 1500
                        for (each in present.filter { it !in pinned }) {
                            if (excess <= 0) break
                            excess -= contents[each].size
                            present.remove(each)
                        }
                    }
                }
                // The file system's clock is too coarse for steps that follow at once.
                present.forEachIndexed { age, each ->
                    cache.file(sha256(contents[each])).setLastModified(1000L * (age + 1))
                }
                val found = contents.indices.filter { cache.file(sha256(contents[it])).exists() }
                assertEquals("after step $step", present.sorted(), found)
            }
            assertEquals(misses, source.fetched)
            assertTrue("$misses misses", misses > 20)
        }
}
