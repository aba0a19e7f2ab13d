package org.fedlens.sdk.training

import com.google.gson.JsonObject
import org.fedlens.proto.v1.Assignment
import org.fedlens.proto.v1.Manifest
import org.fedlens.sdk.AlbumEntry
import org.fedlens.sdk.Bundle
import org.fedlens.sdk.JsonMessages
import org.fedlens.sdk.Vectors
import org.fedlens.sdk.blob.BlobWriter
import org.fedlens.sdk.blob.Differences
import org.fedlens.sdk.content
import org.fedlens.sdk.engine.Rows
import org.fedlens.sdk.floats
import org.fedlens.sdk.hex
import org.fedlens.sdk.int
import org.fedlens.sdk.ints
import org.fedlens.sdk.list
import org.fedlens.sdk.longs
import org.fedlens.sdk.objects
import org.fedlens.sdk.sha256
import org.fedlens.sdk.string
import org.fedlens.sdk.tensors
import org.fedlens.sdk.toHex
import org.junit.Assert.assertArrayEquals
import org.junit.Assert.assertEquals
import org.junit.Assert.assertNull
import org.junit.Rule
import org.junit.Test
import org.junit.rules.TemporaryFolder

class LocalTrainingVectorsTest {
    @get:Rule
    val folder = TemporaryFolder()

    private val vectors = Vectors.json("passes.json")
    private val photos = PreparedPhotos(photoSet("train"), photoSet("test"), emptyMap())
    private val sets = named("sets")
    private val clientState = named("kept")

    private fun named(key: String): Map<String, Tensors> {
        val all = vectors.getAsJsonObject(key)
        return all.keySet().associateWith(all::tensors)
    }

    private fun photoSet(key: String): PhotoSet {
        val vector = vectors.getAsJsonObject(key)
        val entries = vector.objects("photos").map { AlbumEntry(it.hex("photo"), it.int("copy")) }
        return PhotoSet(entries, Rows(vector.get("features").floats(), vector.get("labels").longs()))
    }

    @Test
    fun `every local plan of the vectors takes the same steps to the same bytes`() {
        val plans = vectors.objects("passes")
        assertEquals(10, plans.size)
        plans.forEach(::check)
    }

    private fun check(vector: JsonObject) {
        val name = vector.string("name")
        val assignment = JsonMessages.of<Assignment>(vector.getAsJsonObject("assignment"))
        val json = vectors.getAsJsonObject("manifests").getAsJsonObject(vector.string("manifest"))
        val engine = SummingEngine(Bundle.of(folder.root, JsonMessages.of<Manifest>(json).toByteArray()))
        val losses = ArrayList<Float>()
        val result =
            LocalTraining(
                assignment,
                engine,
                photos,
                sets,
                clientState::get,
            ) { _, _, loss -> losses += loss }.execute()

        val stages = vector.list("stages").map { stage -> stage.asJsonArray.map { it.asJsonArray.ints() } }
        assertEquals(name, stages, engine.batches)
        assertArrayEquals(name, vector.get("losses").floats(), losses.toFloatArray(), 0f)
        assertEquals(name, vector.int("num_examples"), result.numExamples)
        assertEquals(name, vector.list("class_counts").ints(), result.classCounts.map { it.toInt() })
        assertEquals(
            name,
            vector.objects("evaluations").map { it.string("moment") },
            result.evaluations.keys.map { it.name },
        )
        for ((wanted, found) in vector.objects("evaluations").zip(result.evaluations.values)) {
            assertEquals(
                name,
                wanted.int("count") to wanted.int("correct"),
                found.count.toInt() to found.correct.toInt(),
            )
            assertEquals(name, wanted.get("loss").asDouble, found.loss, 1e-8)
            val confusion = wanted.get("confusion").takeIf { it.isJsonArray }?.asJsonArray?.ints()
            assertEquals(name, confusion, found.confusion?.map { it.toInt() })
        }
        val newState = vector.getAsJsonObject("keep")
        assertEquals(name, newState.keySet(), result.newState.keys)
        for ((set, tensors) in result.newState) assertEquals(name, newState.tensors(set).content(), tensors.content())
        val upload = result.upload
        if (vector.has("upload")) {
            assertEquals(name, vector.string("upload"), encoded(assignment, checkNotNull(upload)).toHex())
        } else {
            assertNull(name, upload)
        }
    }

    private fun encoded(
        assignment: Assignment,
        tensors: Tensors,
    ): ByteArray {
        val upload = assignment.localPlan.upload
        val floats = checkNotNull(BlobWriter.floatsOf(upload.codec))
        if (upload.baseSet.isEmpty()) return BlobWriter.encode(tensors, floats)
        val base = sets.getValue(upload.baseSet)
        return BlobWriter.encode(Differences.subtract(tensors, base), floats, sha256(BlobWriter.encode(base)))
    }
}
