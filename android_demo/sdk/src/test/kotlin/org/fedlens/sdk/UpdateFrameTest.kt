package org.fedlens.sdk

import com.google.protobuf.ByteString
import org.fedlens.proto.v1.Receipt
import org.fedlens.proto.v1.UpdateHeader
import org.junit.Assert.assertArrayEquals
import org.junit.Assert.assertEquals
import org.junit.Assert.assertThrows
import org.junit.Test
import java.io.ByteArrayOutputStream

class UpdateFrameTest {
    private val updates = Vectors.json("updates/updates.json").objects("updates")

    @Test
    fun `every update of the vectors is written as the same bytes and expects its receipt`() {
        assertEquals(3, updates.size)
        for (vector in updates) {
            val body = body(vector.string("file"))
            val header = JsonMessages.of<UpdateHeader>(vector.getAsJsonObject("header"))
            val frame = UpdateFrame(header, readUpdate(body).blobs)
            assertArrayEquals(body, ByteArrayOutputStream().also(frame::writeTo).toByteArray())
            assertEquals(body.size.toLong(), frame.size)
            assertEquals(vector.objects("blobs").map { it.string("name") }, header.uploadsList.map { it.name })
            for ((wanted, blob) in vector.objects("blobs").zip(frame.blobs)) {
                assertEquals(wanted.tensors("tensors").content(), blob.tensors.content())
            }
            val receipt = JsonMessages.of<Receipt>(vector.getAsJsonObject("receipt"))
            assertArrayEquals(receipt.bodySha256.toByteArray(), frame.digest())
        }
    }

    @Test
    fun `a header that names another blob, or none, is refused`() {
        val frame = readUpdate(body("update.bin"))
        val named = frame.header.getUploads(0)
        val digest = ByteString.copyFrom(ByteArray(32))
        val another = frame.header.toBuilder().setUploads(0, named.toBuilder().setSha256(digest))
        val longer = frame.header.toBuilder().setUploads(0, named.toBuilder().setSize(named.size + 1))
        for (header in listOf(another.build(), longer.build(), UpdateHeader.getDefaultInstance())) {
            val error = assertThrows(WireException::class.java) { UpdateFrame(header, frame.blobs) }
            assertEquals(WireException.Reason.INCONSISTENT, error.reason)
        }
        assertThrows(WireException::class.java) { UpdateFrame(frame.header, emptyList()) }
    }

    @Test
    fun `a header above 64 KiB is refused`() {
        val counts = UpdateHeader.newBuilder().setProtocol(1).addAllClassCounts(List(70_000) { 1L })
        val error = assertThrows(WireException::class.java) { UpdateFrame(counts.build(), emptyList()) }
        assertEquals(WireException.Reason.TOO_LARGE, error.reason)
    }

    private fun body(file: String) = Vectors.bytes("updates/$file")
}
