package org.fedlens.sdk.blob

import com.google.gson.JsonObject
import org.fedlens.proto.v1.Codec
import org.fedlens.proto.v1.Dtype
import org.fedlens.sdk.BlobException
import org.fedlens.sdk.Vectors
import org.fedlens.sdk.content
import org.fedlens.sdk.objects
import org.fedlens.sdk.string
import org.fedlens.sdk.tensors
import org.fedlens.sdk.toHex
import org.junit.Assert.assertArrayEquals
import org.junit.Assert.assertEquals
import org.junit.Assert.assertThrows
import org.junit.Test

class BlobVectorsTest {
    private val index = Vectors.json("blobs/blobs.json")
    private val blobs = index.objects("blobs")

    @Test
    fun `every blob of the vectors reads as what it must, bit by bit`() {
        assertEquals(16, blobs.size)
        for (vector in blobs) {
            val found = openChecked(file(vector))
            assertEquals(vector.string("name"), vector.tensors("decoded").content(), found.tensors.content())
            assertEquals(vector.string("sha256"), found.digest.toHex())
            assertEquals(vector.string("sha256"), Blob.open(file(vector)).digest.toHex())
            assertEquals(file(vector).length(), found.size)
        }
    }

    @Test
    fun `every blob of the vectors is written as the same bytes`() {
        for (vector in blobs) {
            val base = Blob.open(file(vector)).layout.base
            val written = BlobWriter.encode(vector.tensors("tensors"), floats(vector), base)
            assertArrayEquals(vector.string("name"), file(vector).readBytes(), written)
        }
    }

    @Test
    fun `differences are taken, written and added as in the vectors`() {
        val differences = blobs.filter { it.has("base_file") }
        assertEquals(3, differences.size)
        for (vector in differences) {
            val base = openChecked(Vectors.file("blobs/" + vector.string("base_file")))
            val taken = Differences.subtract(vector.tensors("trained"), base.tensors)
            assertEquals(vector.tensors("tensors").content(), taken.content())
            val written = BlobWriter.encode(taken, floats(vector), base.digest)
            assertArrayEquals(vector.string("name"), file(vector).readBytes(), written)
            val sums = Differences.add(base.tensors, Blob.fromBytes(written).tensors)
            assertEquals(vector.tensors("sums").content(), sums.content())
        }
    }

    @Test
    fun `every blob of the vectors that must be refused is refused, whole, mapped, and byte by byte`() {
        assertEquals(34, index.objects("refused").size)
        for (vector in index.objects("refused")) {
            val name = vector.string("name")
            val whole = assertThrows(name, BlobException::class.java) { Blob.fromBytes(file(vector).readBytes()) }
            val mapped = assertThrows(name, BlobException::class.java) { openChecked(file(vector)) }
            val pieces = assertThrows(name, BlobException::class.java) { fedInPieces(file(vector).readBytes()) }
            assertEquals(name, listOf(whole.reason, whole.reason), listOf(mapped.reason, pieces.reason))
        }
    }

    @Test
    fun `tensors of the vectors that a codec cannot hold are refused`() {
        assertEquals(5, index.objects("not_encodable").size)
        for (vector in index.objects("not_encodable")) {
            val error =
                assertThrows(vector.string("name"), BlobException::class.java) {
                    BlobWriter.encode(vector.tensors("tensors"), floats(vector))
                }
            assertEquals(BlobException.Reason.NOT_FINITE, error.reason)
        }
    }

    private fun file(vector: JsonObject) = Vectors.file("blobs/" + vector.string("file"))

    private fun floats(vector: JsonObject): Dtype =
        checkNotNull(BlobWriter.floatsOf(Codec.valueOf("CODEC_" + vector.string("codec").uppercase())))

    private fun fedInPieces(raw: ByteArray) {
        val checker = BlobChecker()
        for (at in raw.indices) checker.feed(raw, at, 1)
        checker.finish()
    }
}
