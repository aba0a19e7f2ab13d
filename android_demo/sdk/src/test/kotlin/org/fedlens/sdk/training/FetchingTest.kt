package org.fedlens.sdk.training

import com.google.protobuf.ByteString
import kotlinx.coroutines.runBlocking
import org.fedlens.proto.v1.BlobSet
import org.fedlens.proto.v1.BundleClass
import org.fedlens.proto.v1.Difference
import org.fedlens.proto.v1.Dtype
import org.fedlens.proto.v1.ProgramFormat
import org.fedlens.sdk.AGREED
import org.fedlens.sdk.AssignmentException
import org.fedlens.sdk.AssignmentException.Reason
import org.fedlens.sdk.TransportException
import org.fedlens.sdk.blob.BlobWriter
import org.fedlens.sdk.blob.Differences
import org.fedlens.sdk.sha256
import org.junit.Assert.assertEquals
import org.junit.Assert.assertFalse
import org.junit.Assert.assertThrows
import org.junit.Assert.assertTrue
import org.junit.Test

internal class FetchingTest : TestClients() {
    @Test
    fun `of a bundle only what is run is fetched, and once`() {
        val both = listOf(ProgramFormat.PROGRAM_FORMAT_PT2, ProgramFormat.PROGRAM_FORMAT_PTE)
        val client = client(SummingBundle(programFormats = both))
        client.carryOut(wholePlan())
        val manifest = client.bundle.manifest
        val programs =
            manifest.programsList
                .filter { it.name in setOf("step", "predict", "embed") }
                .map { program -> program.filesList.single { it.format == ProgramFormat.PROGRAM_FORMAT_PTE }.sha256 }
        val global = client.sets.getValue("global")
        // The global model has the bytes of the initial weights.
        assertEquals(setOf(ByteString.copyFrom(client.bundle.id), global) + programs, client.server.fetched.toSet())
        assertEquals(client.server.fetched.toSet().size, client.server.fetched.size)
        assertEquals((programs + listOf(global)).map(client::hex).toSet(), client.downloaded())
        client.put("global", encoded(1f))
        client.server.fetched.clear()
        client.carryOut(wholePlan(), round = 2)
        assertEquals(listOf(client.sets.getValue("global")), client.server.fetched)
        assertEquals(1, client.engines.size)
    }

    @Test
    fun `client state becomes current with the receipt and starts the next round`() {
        val client = client()
        client.put("start", encoded(1f))
        val first = client.carryOut(planWithState("start"))
        assertTrue(client.hex(client.sets.getValue("start")) in client.downloaded())
        client.outbox.delivered(first)
        val later = client.put("start", encoded(2f))
        val second = client.carryOut(planWithState("start"), round = 2)
        // Each round adds 8 photos of each class.
        assertEquals(listOf(9f, 9f), uploaded(first).floats("fc.bias"))
        assertEquals(listOf(17f, 17f), uploaded(second).floats("fc.bias"))
        assertFalse(client.hex(later) in client.downloaded())
    }

    @Test
    fun `client state of another bundle gives way to the fallback`() {
        val client = client()
        client.outbox.delivered(client.carryOut(planWithState("initial")))
        client.serve(SummingBundle(features = 5))
        val second = client.carryOut(planWithState("initial"), round = 2)
        assertEquals(listOf(8f, 8f), uploaded(second).floats("fc.bias"))
        assertEquals(listOf(true, false), client.engines.map { it.isClosed })
        client.outbox.delivered(second)
        client.serve(SummingBundle())
        val error = client.refusal(wholePlan { starting(from(state = "mine")) })
        assertEquals("there is no client state 'mine' that fits", error.message)
    }

    @Test
    fun `a set with a difference comes the short way where its base is here, and whole otherwise`() {
        val width = 100
        val client = client(SummingBundle(features = width))
        val before = client.put("global", encoded(0f, width))
        client.carryOut(wholePlan())
        // As float16 it is shorter.
        val next = encoded(0.5f, width)
        val half = Differences.subtract(filled(0.5f, width), filled(0f, width))
        val difference = BlobWriter.encode(half, Dtype.DTYPE_FLOAT16, before.toByteArray())
        assertTrue(difference.size < next.size)
        val way = client.server.put(difference)

        fun set(base: ByteString): BlobSet =
            client
                .set("global", client.server.put(next))
                .setDifference(
                    Difference
                        .newBuilder()
                        .setSha256(way)
                        .setSize(difference.size.toLong())
                        .setBase(base),
                ).build()
        val whole = ByteString.copyFrom(sha256(next))
        client.server.fetched.clear()
        val assignment = client.assignment(wholePlan(), round = 2).toBuilder().setSets(0, set(before)).build()
        runBlocking { client.assignments.carryOut(assignment, onlyTest = false) }
        assertEquals(listOf(way), client.server.fetched)
        assertTrue(client.hex(way) in client.downloaded())

        val elsewhere = client(SummingBundle(features = width))
        elsewhere.server.blobs += client.server.blobs
        runBlocking { elsewhere.assignments.carryOut(assignment, onlyTest = false) }
        assertTrue(whole in elsewhere.server.fetched && way !in elsewhere.server.fetched)
    }

    @Test
    fun `a difference that does not come or fit costs no round`() {
        val next = BlobWriter.encode(filled(0.5f))
        val damaged = listOf(ByteArray(8), BlobWriter.encode(mapOf("x" to filled(0f).getValue("fc.bias"))))
        for (content in damaged + null) {
            val client = client()
            client.carryOut(wholePlan())
            val way = content?.let(client.server::put) ?: ByteString.copyFrom(ByteArray(32))
            val set = client.set("global", client.server.put(next))
            val base = client.sets.getValue("global")
            set.setDifference(
                Difference.newBuilder().setSha256(way).setSize(content?.size?.toLong() ?: 9).setBase(base),
            )
            val assignment = client.assignment(wholePlan(), round = 2).toBuilder().setSets(0, set).build()
            val result = runBlocking { client.assignments.carryOut(assignment, onlyTest = false) }
            assertEquals(listOf(8.5f, 8.5f), uploaded(result).floats("fc.bias"))
        }
    }

    @Test
    fun `a policy is stronger than an assignment, before anything is fetched`() {
        val client = client()
        val unasked = listOf(AGREED.copy(upload = false), AGREED.copy(answerEvaluation = false))
        val refusing = unasked + AGREED.copy(bundles = emptySet())
        for (policy in refusing) {
            client.policy = policy
            assertEquals(Reason.POLICY, client.refusal(wholePlan()).reason)
        }
        assertEquals(emptyList<ByteString>(), client.server.fetched)
        client.policy = AGREED
        assertEquals(Reason.UNSUPPORTED, client.refusal(wholePlan { addExtractors("x") }).reason)
        // To see that, the manifest had to come.
        assertEquals(listOf(ByteString.copyFrom(client.bundle.id)), client.server.fetched)
    }

    @Test
    fun `a bundle that cannot be used is refused before its parts are fetched`() {
        val whole = SummingBundle(bundleClass = BundleClass.BUNDLE_CLASS_WHOLE_MODEL)
        assertEquals(Reason.BUNDLE, client(whole).refusal(wholePlan()).reason)
        val client = client()
        val damaged = client.server.put("no manifest".toByteArray())
        val assignment = client.assignment(wholePlan()).toBuilder().setBundle(damaged).build()
        val error =
            assertThrows(AssignmentException::class.java) {
                runBlocking { client.assignments.carryOut(assignment, onlyTest = false) }
            }
        assertEquals(Reason.BUNDLE, error.reason)
        assertEquals(listOf(damaged), client.server.fetched)
    }

    @Test
    fun `blobs that the cache cannot take are refused`() {
        val client = client(maxCacheBytes = 50)
        client.put("global", encoded(1f))
        val error = client.refusal(wholePlan())
        assertEquals(Reason.UNSUPPORTED, error.reason)
        // The programs are what is fetched first.
        val sizes =
            client.bundle.manifest.programsList.filter { it.name != "another-step" }.map { program ->
                client.server.blobs.getValue(program.getFiles(0).sha256).size
            }
        assertEquals(
            "bytes, ${sizes.sum()} in all; the cache of this client takes up to 50",
            error.message?.substringAfter("of ${sizes[0]} "),
        )
    }

    @Test
    fun `sets that are no blobs, or differences, are named`() {
        val client = client()
        client.put("global", ByteArray(100))
        assertEquals("set 'global': not a blob: it does not start like one", client.refusal(wholePlan()).message)
        client.put("global", BlobWriter.encode(filled(0f), base = ByteArray(32)))
        assertEquals(
            "set 'global' holds the difference to blob ${"00".repeat(32)}; a set must hold whole weights",
            client.refusal(wholePlan()).message,
        )
        client.server.blobs -= client.put("global", encoded(3f))
        val error = assertThrows(TransportException::class.java) { client.carryOut(wholePlan()) }
        assertEquals(TransportException.Reason.REFUSED, error.reason)
    }
}
