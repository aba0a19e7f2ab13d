package org.fedlens.sdk.pass

import com.google.protobuf.ByteString
import kotlinx.coroutines.runBlocking
import org.fedlens.proto.v1.BlobSet
import org.fedlens.proto.v1.BundleClass
import org.fedlens.proto.v1.Difference
import org.fedlens.proto.v1.Dtype
import org.fedlens.proto.v1.ProgramFormat
import org.fedlens.sdk.PassException
import org.fedlens.sdk.PassException.Reason
import org.fedlens.sdk.Policy
import org.fedlens.sdk.TransportException
import org.fedlens.sdk.blob.BlobWriter
import org.fedlens.sdk.blob.Differences
import org.fedlens.sdk.sha256
import org.junit.Assert.assertEquals
import org.junit.Assert.assertFalse
import org.junit.Assert.assertThrows
import org.junit.Assert.assertTrue
import org.junit.Test

internal class FetchingTest : Offices() {
    @Test
    fun `of a bundle only what is run is fetched, and once`() {
        val both = listOf(ProgramFormat.PROGRAM_FORMAT_PT2, ProgramFormat.PROGRAM_FORMAT_PTE)
        val office = office(SummingBundle(programFormats = both))
        office.carryOut(wholePlan())
        val manifest = office.bundle.manifest
        val programs =
            manifest.programsList
                .filter { it.name in setOf("step", "predict", "embed") }
                .map { program -> program.filesList.single { it.format == ProgramFormat.PROGRAM_FORMAT_PTE }.sha256 }
        val global = office.sets.getValue("global")
        // The global model has the bytes of the initial weights.
        assertEquals(setOf(ByteString.copyFrom(office.bundle.id), global) + programs, office.shelf.fetched.toSet())
        assertEquals(office.shelf.fetched.toSet().size, office.shelf.fetched.size)
        assertEquals((programs + listOf(global)).map(office::hex).toSet(), office.downloaded())
        office.put("global", encoded(1f))
        office.shelf.fetched.clear()
        office.carryOut(wholePlan(), round = 2)
        assertEquals(listOf(office.sets.getValue("global")), office.shelf.fetched)
        assertEquals(1, office.engines.size)
    }

    @Test
    fun `what is kept becomes current with the receipt and starts the next round`() {
        val office = office()
        office.put("start", encoded(1f))
        val first = office.carryOut(keeping("start"))
        assertTrue(office.hex(office.sets.getValue("start")) in office.downloaded())
        office.outbox.delivered(first)
        val later = office.put("start", encoded(2f))
        val second = office.carryOut(keeping("start"), round = 2)
        // Each round adds 8 photos of each class.
        assertEquals(listOf(9f, 9f), uploaded(first).floats("fc.bias"))
        assertEquals(listOf(17f, 17f), uploaded(second).floats("fc.bias"))
        assertFalse(office.hex(later) in office.downloaded())
    }

    @Test
    fun `what was kept of another bundle gives way to the fallback`() {
        val office = office()
        office.outbox.delivered(office.carryOut(keeping("initial")))
        office.serve(SummingBundle(features = 5))
        val second = office.carryOut(keeping("initial"), round = 2)
        assertEquals(listOf(8f, 8f), uploaded(second).floats("fc.bias"))
        assertEquals(listOf(true, false), office.engines.map { it.isClosed })
        office.outbox.delivered(second)
        office.serve(SummingBundle())
        val error = office.refusal(wholePlan { setStart(0, from(kept = "mine")) })
        assertEquals(
            "client state 'mine': tensor 'fc.weight' is float32[2, 5], the bundle has float32[2, 3]",
            error.message,
        )
    }

    @Test
    fun `a set with a difference comes the short way where its base is here, and whole otherwise`() {
        val width = 100
        val office = office(SummingBundle(features = width))
        val before = office.put("global", encoded(0f, width))
        office.carryOut(wholePlan())
        // As float16 it is shorter.
        val next = encoded(0.5f, width)
        val half = Differences.subtract(filled(0.5f, width), filled(0f, width))
        val difference = BlobWriter.encode(half, Dtype.DTYPE_FLOAT16, before.toByteArray())
        assertTrue(difference.size < next.size)
        val way = office.shelf.put(difference)

        fun set(base: ByteString): BlobSet =
            office
                .set("global", office.shelf.put(next))
                .setDifference(
                    Difference
                        .newBuilder()
                        .setSha256(way)
                        .setSize(difference.size.toLong())
                        .setBase(base),
                ).build()
        val whole = ByteString.copyFrom(sha256(next))
        office.shelf.fetched.clear()
        val assignment = office.assignment(wholePlan(), round = 2).toBuilder().setSets(0, set(before)).build()
        runBlocking { office.assignments.carryOut(assignment, onlyTest = false) }
        assertEquals(listOf(way), office.shelf.fetched)
        assertTrue(office.hex(way) in office.downloaded())

        val elsewhere = office(SummingBundle(features = width))
        elsewhere.shelf.blobs += office.shelf.blobs
        runBlocking { elsewhere.assignments.carryOut(assignment, onlyTest = false) }
        assertTrue(whole in elsewhere.shelf.fetched && way !in elsewhere.shelf.fetched)
    }

    @Test
    fun `a difference that does not come or fit costs no round`() {
        val next = BlobWriter.encode(filled(0.5f))
        val damaged = listOf(ByteArray(8), BlobWriter.encode(mapOf("x" to filled(0f).getValue("fc.bias"))))
        for (content in damaged + null) {
            val office = office()
            office.carryOut(wholePlan())
            val way = content?.let(office.shelf::put) ?: ByteString.copyFrom(ByteArray(32))
            val set = office.set("global", office.shelf.put(next))
            val base = office.sets.getValue("global")
            set.setDifference(
                Difference.newBuilder().setSha256(way).setSize(content?.size?.toLong() ?: 9).setBase(base),
            )
            val assignment = office.assignment(wholePlan(), round = 2).toBuilder().setSets(0, set).build()
            val result = runBlocking { office.assignments.carryOut(assignment, onlyTest = false) }
            assertEquals(listOf(8.5f, 8.5f), uploaded(result).floats("fc.bias"))
        }
    }

    @Test
    fun `a policy is stronger than an assignment, before anything is fetched`() {
        val office = office()
        for (policy in listOf(Policy(upload = false), Policy(answerEvaluation = false), Policy(bundles = emptySet()))) {
            office.policy = policy
            assertEquals(Reason.POLICY, office.refusal(wholePlan()).reason)
        }
        assertEquals(emptyList<ByteString>(), office.shelf.fetched)
        office.policy = Policy()
        assertEquals(Reason.UNSUPPORTED, office.refusal(wholePlan { addExtractors("x") }).reason)
        // To see that, the manifest had to come.
        assertEquals(listOf(ByteString.copyFrom(office.bundle.id)), office.shelf.fetched)
    }

    @Test
    fun `a bundle that cannot be used is refused before its parts are fetched`() {
        val whole = SummingBundle(bundleClass = BundleClass.BUNDLE_CLASS_WHOLE_MODEL)
        assertEquals(Reason.BUNDLE, office(whole).refusal(wholePlan()).reason)
        val office = office()
        val damaged = office.shelf.put("no manifest".toByteArray())
        val assignment = office.assignment(wholePlan()).toBuilder().setBundle(damaged).build()
        val error =
            assertThrows(PassException::class.java) {
                runBlocking { office.assignments.carryOut(assignment, onlyTest = false) }
            }
        assertEquals(Reason.BUNDLE, error.reason)
        assertEquals(listOf(damaged), office.shelf.fetched)
    }

    @Test
    fun `blobs that the cache cannot take are refused`() {
        val office = office(maxCacheBytes = 50)
        office.put("global", encoded(1f))
        val error = office.refusal(wholePlan())
        assertEquals(Reason.UNSUPPORTED, error.reason)
        // The programs are what is fetched first.
        val sizes =
            office.bundle.manifest.programsList.filter { it.name != "another-step" }.map { program ->
                office.shelf.blobs.getValue(program.getFiles(0).sha256).size
            }
        assertEquals(
            "bytes, ${sizes.sum()} in all; the cache of this client takes up to 50",
            error.message?.substringAfter("of ${sizes[0]} "),
        )
    }

    @Test
    fun `sets that are no blobs, or differences, are named`() {
        val office = office()
        office.put("global", ByteArray(100))
        assertEquals("set 'global': not a blob: it does not start like one", office.refusal(wholePlan()).message)
        office.put("global", BlobWriter.encode(filled(0f), base = ByteArray(32)))
        assertEquals(
            "set 'global' holds the difference to blob ${"00".repeat(32)}; a set must hold whole weights",
            office.refusal(wholePlan()).message,
        )
        office.shelf.blobs -= office.put("global", encoded(3f))
        val error = assertThrows(TransportException::class.java) { office.carryOut(wholePlan()) }
        assertEquals(TransportException.Reason.REFUSED, error.reason)
    }
}
