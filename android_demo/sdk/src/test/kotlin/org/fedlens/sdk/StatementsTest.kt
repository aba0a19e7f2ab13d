package org.fedlens.sdk

import com.google.gson.JsonObject
import org.junit.Assert.assertEquals
import org.junit.Assert.assertThrows
import org.junit.Test

class StatementsTest {
    private val index = Vectors.json("statements/statements.json")
    private val publishers =
        index.getAsJsonObject("publishers").entrySet().associate { it.key to Publisher.of(it.value.asString) }

    private fun outcome(vector: JsonObject): String =
        try {
            val signed = Vectors.bytes("statements/${vector.string("file")}")
            val trusted = vector.list("publishers").map { publishers.getValue(it.asString) }
            val found = Statements.verified(signed, vector.hex("manifest"), trusted)
            Statements.check(found, vector.list("audience").map { it.asString }.toSet(), vector.get("floor").asLong)
            Statements.checkTime(found, vector.get("now").asDouble)
            "taken"
        } catch (refusal: StatementException) {
            refusal.reason.name.lowercase()
        }

    @Test
    fun `statements are taken and refused as in every language`() {
        for (vector in index.objects("cases")) {
            assertEquals(vector.string("name"), vector.string("outcome"), outcome(vector))
        }
    }

    @Test
    fun `ids of publishers are as in every language`() {
        for ((name, id) in index.getAsJsonObject("ids").entrySet()) {
            assertEquals(name, id.asString, publishers.getValue(name).id.toHex())
        }
    }

    @Test
    fun `what is no key of P-256 is no publisher`() {
        for (pem in index.list("not_publishers").map { it.asString }) {
            val refusal = assertThrows(pem, StatementException::class.java) { Publisher.of(pem) }
            assertEquals(pem, StatementException.Reason.KEY, refusal.reason)
        }
    }
}
