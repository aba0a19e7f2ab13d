package org.fedlens.sdk

import com.google.gson.JsonObject
import com.google.protobuf.MessageLite
import com.google.protobuf.Parser
import org.fedlens.proto.v1.CheckInRequest
import org.fedlens.proto.v1.EnrolRequest
import org.fedlens.proto.v1.UpdateHeader
import org.junit.Assert.assertArrayEquals
import org.junit.Assert.assertEquals
import org.junit.Assert.assertThrows
import org.junit.Test
import kotlin.random.Random

class MessagesTest {
    private val index = Vectors.json("messages/messages.json")
    private val messages = index.objects("messages") + index.objects("errors")

    @Test
    fun `every message of the vectors reads as what its json says`() {
        assertEquals(34, messages.size)
        for (vector in messages) {
            val type = vector.string("type")
            val found = Wire.decode(JsonMessages.parser(type), Vectors.bytes(path(vector.string("file"))))
            assertEquals(vector.string("name"), wanted(found, type, vector), found)
        }
    }

    @Test
    fun `every message of the vectors is written as the same bytes`() {
        for (vector in messages.filter { it.string("name") != OF_A_LATER_VERSION }) {
            val written = JsonMessages.build(vector.string("type"), vector.getAsJsonObject("json")).toByteArray()
            assertArrayEquals(vector.string("name"), Vectors.bytes(path(vector.string("file"))), written)
        }
    }

    @Test
    fun `every message of the vectors that must be refused is refused`() {
        assertEquals(4, index.objects("refused").size)
        for (vector in index.objects("refused")) {
            val raw = Vectors.bytes(path(vector.string("file")))
            assertThrows(vector.string("file"), WireException::class.java) { readRequest(vector.string("type"), raw) }
        }
    }

    @Test
    fun `damaged messages end in a named error or in a message`() {
        val random = Random(20_240_601)
        for (vector in messages) {
            val raw = Vectors.bytes(path(vector.string("file")))
            if (raw.isEmpty()) continue
            repeat(200) {
                val damaged = raw.copyOf(random.nextInt(1, raw.size + 1))
                repeat(random.nextInt(4)) {
                    val at = random.nextInt(damaged.size)
                    damaged[at] = (damaged[at].toInt() xor (1 shl random.nextInt(8))).toByte()
                }
                orNamedError { Wire.decode(JsonMessages.parser(vector.string("type")), damaged) }
            }
        }
    }

    /** The message in JSON form, including fields of a later version. */
    private fun wanted(
        found: MessageLite,
        type: String,
        vector: JsonObject,
    ): MessageLite {
        val wanted = JsonMessages.build(type, vector.getAsJsonObject("json"))
        if (vector.string("name") != OF_A_LATER_VERSION) return wanted
        // The lite runtime keeps fields that it does not know, and compares them too.
        val unknown = found.toByteArray().copyOfRange(wanted.serializedSize, found.serializedSize)
        return Wire.decode(JsonMessages.parser(type), wanted.toByteArray() + unknown)
    }

    private fun readRequest(
        type: String,
        raw: ByteArray,
    ): MessageLite =
        when (type) {
            "fedlens_proto.v1.CheckInRequest" -> request(CheckInRequest.parser(), raw, CheckInRequest::getProtocol)
            "fedlens_proto.v1.EnrolRequest" -> request(EnrolRequest.parser(), raw, EnrolRequest::getProtocol)
            "fedlens_proto.v1.UpdateHeader" -> request(UpdateHeader.parser(), raw, UpdateHeader::getProtocol)
            else -> error("no request: $type")
        }

    private fun <M : MessageLite> request(
        parser: Parser<M>,
        raw: ByteArray,
        protocol: (M) -> Int,
    ): MessageLite = Wire.decodeRequest(parser, raw, protocol)

    private fun path(file: String) = "messages/$file"

    private companion object {
        const val OF_A_LATER_VERSION = "check-in-request-of-a-later-version"
    }
}
