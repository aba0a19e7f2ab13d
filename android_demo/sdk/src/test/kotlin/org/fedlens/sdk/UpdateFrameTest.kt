package org.fedlens.sdk

import com.google.protobuf.ByteString
import org.fedlens.proto.v1.Receipt
import org.fedlens.proto.v1.UpdateHeader
import org.junit.Assert.assertArrayEquals
import org.junit.Assert.assertEquals
import org.junit.Assert.assertThrows
import org.junit.Test
import java.io.ByteArrayOutputStream
import kotlin.random.Random

class UpdateFrameTest {
    private val updates = Vectors.json("updates/updates.json").objects("updates")

    @Test
    fun `every update of the vectors is taken apart as its json says`() {
        assertEquals(3, updates.size)
        for (vector in updates) {
            val found = UpdateFrame.read(body(vector.string("file")))
            assertEquals(JsonMessages.of<UpdateHeader>(vector.getAsJsonObject("header")), found.header)
            assertEquals(vector.int("header_bytes"), found.header.serializedSize)
            val blobBytes = found.blob?.size ?: 0
            assertEquals(vector.int("blob_bytes").toLong(), blobBytes)
            assertEquals(vector.int("blob_offset").toLong(), found.size - blobBytes)
            assertEquals(vector.tensors("tensors").content(), found.blob?.tensors.orEmpty().content())
        }
    }

    @Test
    fun `every update of the vectors is written as the same bytes and expects its receipt`() {
        for (vector in updates) {
            val body = body(vector.string("file"))
            val header = JsonMessages.of<UpdateHeader>(vector.getAsJsonObject("header"))
            val frame = UpdateFrame(header, UpdateFrame.read(body).blob)
            assertArrayEquals(body, ByteArrayOutputStream().also(frame::writeTo).toByteArray())
            assertEquals(body.size.toLong(), frame.size)
            val receipt = JsonMessages.of<Receipt>(vector.getAsJsonObject("receipt"))
            assertArrayEquals(receipt.bodySha256.toByteArray(), frame.digest())
        }
    }

    @Test
    fun `a header that names another blob, or none, is refused`() {
        val frame = UpdateFrame.read(body("update.bin"))
        val another = frame.header.toBuilder().setBlobSha256(ByteString.copyFrom(ByteArray(32)))
        val longer = frame.header.toBuilder().setBlobSize(frame.header.blobSize + 1)
        for (header in listOf(another.build(), longer.build(), UpdateHeader.getDefaultInstance())) {
            val error = assertThrows(WireException::class.java) { UpdateFrame(header, frame.blob) }
            assertEquals(WireException.Reason.INCONSISTENT, error.reason)
        }
        assertThrows(WireException::class.java) { UpdateFrame(frame.header, null) }
    }

    @Test
    fun `a header above 64 KiB is refused, written or read`() {
        val counts = UpdateHeader.newBuilder().setProtocol(1).addAllClassCounts(List(70_000) { 1L })
        val error = assertThrows(WireException::class.java) { UpdateFrame(counts.build(), null) }
        assertEquals(WireException.Reason.TOO_LARGE, error.reason)
        val claimed = assertThrows(WireException::class.java) { UpdateFrame.read(ByteArray(16) { -1 }) }
        assertEquals(WireException.Reason.TOO_LARGE, claimed.reason)
    }

    @Test
    fun `a body cut anywhere ends in a named error`() {
        for (vector in updates) {
            val body = body(vector.string("file"))
            for (length in body.indices) {
                assertThrows(FedLensException::class.java) { UpdateFrame.read(body.copyOf(length)) }
            }
        }
    }

    @Test
    fun `a body with a flipped bit ends in a named error or differs`() {
        val random = Random(20_240_602)
        for (vector in updates) {
            val body = body(vector.string("file"))
            repeat(2_000) {
                val damaged = body.copyOf()
                val at = random.nextInt(damaged.size)
                damaged[at] = (damaged[at].toInt() xor (1 shl random.nextInt(8))).toByte()
                orNamedError { UpdateFrame.read(damaged) }
            }
        }
    }

    private fun body(file: String) = Vectors.bytes("updates/$file")
}
