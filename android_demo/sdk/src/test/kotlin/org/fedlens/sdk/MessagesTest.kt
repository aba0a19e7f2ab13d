package org.fedlens.sdk

import com.google.gson.JsonObject
import com.google.protobuf.MessageLite
import org.junit.Assert.assertArrayEquals
import org.junit.Assert.assertEquals
import org.junit.Assert.assertTrue
import org.junit.Test
import kotlin.random.Random

class MessagesTest {
    private val index = Vectors.json("messages/messages.json")
    private val messages = index.objects("messages") + index.objects("errors")

    @Test
    fun `every message of the vectors reads as what its json says`() {
        val files = checkNotNull(Vectors.file("messages").listFiles { file -> file.extension == "bin" })
        assertTrue("every file in the index", messages.map { it.string("file") }.containsAll(files.map { it.name }))
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

    private fun path(file: String) = "messages/$file"

    private companion object {
        const val OF_A_LATER_VERSION = "check-in-request-of-a-later-version"
    }
}
