package org.fedlens.sdk

import org.fedlens.proto.v1.LastBatch
import org.fedlens.proto.v1.Train
import org.junit.Assert.assertArrayEquals
import org.junit.Assert.assertEquals
import org.junit.Assert.assertThrows
import org.junit.Test
import java.nio.ByteBuffer
import java.nio.ByteOrder

class KeyedHashTest {
    private val draws = Vectors.json("draws.json")

    @Test
    fun `ids and authorisation follow from secrets as in the vectors`() {
        for (vector in draws.objects("client_ids")) {
            assertEquals(vector.string("id"), KeyedHash.clientId(vector.hex("secret")).toHex())
            assertEquals(vector.string("authorization"), KeyedHash.authorization(vector.hex("secret")))
        }
    }

    @Test
    fun `assignment seeds, which a server makes, follow from the documented rule as in the vectors`() {
        for (vector in draws.objects("assignment_seeds")) {
            val round = ByteBuffer.allocate(8).order(ByteOrder.LITTLE_ENDIAN).putLong(vector.get("round").asLong)
            val start = "fedlens/assignment/v1".toByteArray() + vector.hex("task_seed")
            assertEquals(vector.string("seed"), sha256(start + round.array() + vector.hex("client")).toHex())
        }
    }

    @Test
    fun `photos of an epoch are ranked and sorted as in the vectors`() {
        val orders = draws.getAsJsonObject("orders")
        val entries = orders.objects("entries").map { AlbumEntry(it.hex("photo"), it.int("copy")) }
        for (vector in orders.objects("epochs")) {
            val (training, epoch) = vector.int("training") to vector.int("epoch")
            val seed = orders.hex("seed")
            val ranks = entries.map { KeyedHash.photoRank(seed, training, epoch, it.photo, it.copy).toHex() }
            assertEquals(vector.list("ranks").map { it.asString }, ranks)
            val order = KeyedHash.photoOrder(orders.hex("seed"), training, epoch, entries)
            assertEquals(vector.list("order").ints(), order.toList())
        }
    }

    @Test
    fun `steps take the rows of the vectors`() {
        val seed = draws.getAsJsonObject("orders").hex("seed")
        assertEquals(8, draws.objects("batches").size)
        for (vector in draws.objects("batches")) {
            val entries = vector.list("photos").map { AlbumEntry(it.asString.unhex()) }
            val length = Train.newBuilder()
            if (vector.has("steps")) length.setSteps(vector.int("steps")) else length.setEpochs(vector.int("epochs"))
            val last = LastBatch.valueOf(vector.string("last_batch"))
            val rows = Batches.of(entries, seed, vector.int("training"), length.build(), vector.int("batch"), last)
            assertEquals(vector.list("rows").map { it.asJsonArray.ints() }, rows.map { it.toList() }.toList())
        }
    }

    @Test
    fun `uniform numbers of views are those of the vectors, bit by bit`() {
        for (vector in draws.objects("view_uniforms")) {
            val wanted = vector.get("uniforms").floats()
            val found = KeyedHash.viewUniforms(vector.hex("seed"), vector.hex("photo"), vector.int("view"), wanted.size)
            assertArrayEquals(wanted, found, 0f)
        }
    }

    @Test
    fun `uniform numbers of steps are those of the vectors, bit by bit`() {
        for (vector in draws.objects("step_uniforms")) {
            val wanted = vector.get("uniforms").floats()
            val (training, step, slot) = listOf("training", "step", "slot").map(vector::int)
            val found = KeyedHash.stepUniforms(vector.hex("seed"), training, step, slot, wanted.size)
            assertArrayEquals(wanted, found, 0f)
        }
    }

    @Test
    fun `photos are set apart for validation as in the vectors`() {
        for (vector in draws.objects("validation_photos")) {
            val found = (1..50).filter { KeyedHash.isValidationPhoto(vector.hex("photo"), it) }
            assertEquals(vector.list("percents").ints(), found)
        }
    }

    @Test
    fun `views are chosen as in the vectors`() {
        for (vector in draws.objects("view_choices")) {
            val (stored, count) = vector.int("stored") to vector.int("count")
            val chosen = KeyedHash.viewChoice(vector.hex("seed"), vector.hex("photo"), stored, count)
            assertEquals(vector.list("chosen").ints(), chosen.toList())
        }
    }

    @Test
    fun `photos are set aside for evaluation as in the vectors`() {
        for (vector in draws.objects("test_photos")) {
            assertEquals(vector.get("is_test").asBoolean, KeyedHash.isTestPhoto(vector.hex("photo")))
        }
    }

    @Test
    fun `nothing of the draws is left out`() {
        val known =
            setOf("client_ids", "assignment_seeds", "orders", "batches", "view_uniforms", "view_choices") +
                setOf("step_uniforms", "validation_photos", "test_photos")
        assertEquals(known, draws.keySet())
    }

    @Test
    fun `a secret of another length is refused`() {
        assertThrows(IllegalArgumentException::class.java) { KeyedHash.clientId(ByteArray(31)) }
    }
}
