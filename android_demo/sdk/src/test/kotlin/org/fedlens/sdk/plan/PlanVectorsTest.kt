package org.fedlens.sdk.plan

import com.google.gson.JsonObject
import org.fedlens.proto.v1.Answer
import org.fedlens.proto.v1.Assignment
import org.fedlens.proto.v1.LocalPlan
import org.fedlens.proto.v1.Manifest
import org.fedlens.sdk.AlbumEntry
import org.fedlens.sdk.Bundle
import org.fedlens.sdk.JsonMessages
import org.fedlens.sdk.ManifestException
import org.fedlens.sdk.Manifests
import org.fedlens.sdk.Vectors
import org.fedlens.sdk.blob.BlobWriter
import org.fedlens.sdk.blob.Differences
import org.fedlens.sdk.blob.FloatTensor
import org.fedlens.sdk.blob.LongTensor
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
import org.fedlens.sdk.training.LocalTraining
import org.fedlens.sdk.training.PhotoSet
import org.fedlens.sdk.training.PreparedPhotos
import org.fedlens.sdk.training.Tensors
import org.junit.Assert.assertArrayEquals
import org.junit.Assert.assertEquals
import org.junit.Assert.assertThrows
import org.junit.Rule
import org.junit.Test
import org.junit.rules.TemporaryFolder
import java.io.File
import java.util.Base64
import java.util.Locale

class PlanVectorsTest {
    @get:Rule
    val folder = TemporaryFolder()

    private val vectors = Vectors.json("plans.json")
    private val sets = named("sets")
    private val state = named("state")

    private fun named(key: String): Map<String, Tensors> {
        val all = vectors.getAsJsonObject(key)
        return all.keySet().associateWith(all::tensors)
    }

    private fun manifest(vector: JsonObject): Manifest =
        JsonMessages.of(vectors.getAsJsonObject("manifests").getAsJsonObject(vector.string("manifest")))

    private fun photoSet(
        key: String,
        count: Int? = null,
    ): PhotoSet {
        val vector = vectors.getAsJsonObject(key)
        val entries = vector.objects("photos").map { AlbumEntry(it.hex("photo"), it.int("copy")) }
        val most = count ?: entries.size
        val features = vector.get("features").floats()
        val inputs = features.copyOf(features.size / entries.size * most)
        return PhotoSet(entries.take(most), Rows(inputs, vector.get("labels").longs().copyOf(most)))
    }

    private fun bundle(vector: JsonObject): Bundle {
        val manifest = manifest(vector)
        val public = photoSet("public")
        val shape = listOf(public.size.toLong(), public.rows.inputs.size / public.size.toLong())
        val tensors =
            mapOf(
                "input" to FloatTensor.of(shape, public.rows.inputs),
                "label" to LongTensor.of(shape.take(1), public.rows.labels),
            )
        val root = folder.newFolder()
        val part = File(root, "parts/${manifest.public.sha256.toByteArray().toHex()}")
        part.parentFile?.mkdirs()
        part.writeBytes(BlobWriter.encode(tensors))
        return Bundle.of(root, manifest.toByteArray())
    }

    @Test
    fun `every local plan of the vectors takes the same steps to the same bytes`() {
        val plans = vectors.objects("plans")
        assertEquals(22, plans.size)
        plans.forEach(::check)
    }

    private fun check(vector: JsonObject) {
        val name = vector.string("name")
        val assignment = JsonMessages.of<Assignment>(vector.getAsJsonObject("assignment"))
        val plan = assignment.localPlan
        val engine = HandEngine(bundle(vector))
        val manifest = engine.bundle.manifest
        val listed = assignment.setsList.map { it.name }
        PlanCheck(plan, manifest, assignment.answer, listed.toSet()).run()
        val consents = vector.list("consents").map { it.asString }
        assertEquals(name, consents, Plans.consents(plan, manifest).sorted())
        val zeros =
            manifest.tensorsList.associate { tensor ->
                val count = tensor.shapeList.fold(1L, Long::times).toInt()
                tensor.name to FloatTensor.of(tensor.shapeList, FloatArray(count))
            }
        val downloads = sets.filterKeys { it in listed } + (Manifests.INITIAL to zeros)
        val photos = PreparedPhotos(photoSet("train", vector.int("photos")), photoSet("test"), emptyMap())
        val steps = ArrayList<Pair<Long, Long>>()
        val result =
            LocalTraining(assignment, engine, photos, downloads, state::get) { step, all, _ -> steps += step to all }
                .execute()

        val batches = vector.list("batches").map { each -> each.asJsonArray.map { it.asJsonArray.ints() } }
        assertEquals(name, batches, engine.batches)
        val losses = vector.get("losses").floats()
        assertArrayEquals(name, losses, engine.losses.toFloatArray(), 0f)
        assertEquals(name, losses.indices.map { it + 1L to losses.size.toLong() }, steps)
        assertEquals(name, vector.int("num_examples"), result.numExamples)
        assertEquals(name, vector.list("class_counts").ints(), result.classCounts.map { it.toInt() })
        assertEquals(name, vector.objects("evaluations").map { it.string("label") }, result.evaluations.keys.toList())
        for (wanted in vector.objects("evaluations")) {
            val found = result.evaluations.getValue(wanted.string("label"))
            assertEquals(
                name,
                wanted.int("count") to wanted.int("correct"),
                found.count.toInt() to found.correct.toInt(),
            )
            assertEquals(name, wanted.get("loss").asDouble, found.loss, 1e-8)
            val confusion = wanted.get("confusion").takeIf { it.isJsonArray }?.asJsonArray?.ints()
            assertEquals(name, confusion, found.confusion?.map { it.toInt() })
        }
        val keeps = vector.getAsJsonObject("keeps")
        assertEquals(name, keeps.keySet(), result.keeps.keys)
        for ((set, tensors) in result.keeps) assertEquals(name, keeps.tensors(set).content(), tensors.content())
        val uploads = vector.getAsJsonObject("uploads")
        assertEquals(name, uploads.keySet(), result.uploads.keys)
        for (upload in plan.uploadsList) {
            val tensors = result.uploads.getValue(upload.name)
            val floats = checkNotNull(BlobWriter.floatsOf(upload.codec))
            val base = downloads[upload.base]
            val found =
                if (base == null) {
                    BlobWriter.encode(tensors, floats)
                } else {
                    val differences = Differences.subtract(tensors, base)
                    BlobWriter.encode(differences, floats, sha256(BlobWriter.encode(base)))
                }
            assertEquals(name, uploads.string(upload.name), found.toHex())
        }
    }

    @Test
    fun `every refused plan of the vectors is refused with its code`() {
        for (vector in vectors.objects("refused_plans")) {
            val plan = JsonMessages.of<LocalPlan>(vector.getAsJsonObject("plan"))
            val given = vector.get("sets").takeIf { it.isJsonArray }?.asJsonArray?.map { it.asString }
            val answer = Answer.valueOf(vector.string("answer"))
            val refused =
                assertThrows(vector.string("name"), PlanRefused::class.java) {
                    PlanCheck(plan, manifest(vector), answer, given?.toSet()).run()
                }
            assertEquals(vector.string("name"), vector.string("code"), refused.code)
        }
    }

    @Test
    fun `every refused manifest of the vectors is refused`() {
        for (vector in vectors.objects("refused_manifests")) {
            val raw = Base64.getDecoder().decode(vector.string("manifest"))
            val refused =
                assertThrows(vector.string("name"), ManifestException::class.java) { Manifests.parse(raw) }
            assertEquals(vector.string("name"), ManifestException.Reason.INVALID, refused.reason)
        }
    }

    @Test
    fun `classes are shown in the language of the phone, or in a more general one, or as they are`() {
        val manifest: Manifest = JsonMessages.of(vectors.getAsJsonObject("manifests").getAsJsonObject("filled"))
        val shown =
            listOf("de", "de-AT", "pt-BR", "pt", "zh-Hant-TW", "en").associateWith { tag ->
                Manifests.displayNames(manifest, Locale.forLanguageTag(tag)).values.toList()
            }

        val names = listOf("cat", "dog")
        val expected =
            listOf(listOf("Katze", "Hund"), listOf("Katze", "Hund"), listOf("gato", "cachorro"), names) +
                listOf(listOf("貓", "狗"), names)
        assertEquals(shown.keys.zip(expected).toMap(), shown)
        assertEquals(names, Manifests.displayNames(manifest, Locale.GERMAN).keys.toList())
    }
}
