package org.fedlens.sdk

import com.google.gson.JsonObject
import org.fedlens.proto.v1.Assignment
import org.fedlens.proto.v1.UpdateHeader
import org.fedlens.sdk.blob.Blob
import org.fedlens.sdk.blob.BlobWriter
import org.fedlens.sdk.blob.Differences
import org.fedlens.sdk.blob.openChecked
import org.junit.Assert.assertArrayEquals
import org.junit.Assert.assertEquals
import org.junit.Test
import java.io.ByteArrayOutputStream

/** The parts of a local plan that need no program. */
class LocalPlanTest {
    private val vectors = Vectors.json("plan/plan.json")
    private val assignment = Assignment.parseFrom(Vectors.bytes("plan/assignment.bin"))
    private val manifest = Manifests.parse(Vectors.bytes("bundle/manifest.pb"))

    @Test
    fun `the assignment reads as what its json says`() {
        assertEquals(JsonMessages.of<Assignment>(vectors.getAsJsonObject("assignment")), assignment)
        assertArrayEquals(Vectors.bytes("plan/assignment.bin"), assignment.toByteArray())
    }

    @Test
    fun `the album is divided, sorted and labelled as in the vectors`() {
        val album = album()
        for ((key, isTest) in listOf("train" to false, "test" to true)) {
            val vector = vectors.getAsJsonObject(key)
            val found = album.filter { KeyedHash.isTestPhoto(it.first.photo) == isTest }
            assertEquals(vector.objects("photos").map(::entry), found.map { it.first })
            assertEquals(vector.list("labels").ints(), found.map { manifest.classNamesList.indexOf(it.second) })
        }
    }

    @Test
    fun `the steps of each training take the rows of the vectors`() {
        val train = vectors.getAsJsonObject("train").objects("photos").map(::entry)
        val trainings = assignment.localPlan.instructionsList.filter { it.hasTrain() }
        val rows =
            trainings.mapIndexed { i, each ->
                Batches
                    .of(train, assignment.seed.toByteArray(), i, each.train, manifest.batch, manifest.lastBatch)
                    .map { it.toList() }
                    .toList()
            }
        assertEquals(vectors.list("batches").map { each -> each.asJsonArray.map { it.asJsonArray.ints() } }, rows)
    }

    @Test
    fun `the download is the set of the vectors`() {
        val set = assignment.getSets(0)
        val download = openChecked(Vectors.file("plan/global.blob"))
        assertArrayEquals(set.sha256.toByteArray(), download.digest)
        assertEquals(set.size, download.size)
        assertEquals(vectors.getAsJsonObject("sets").tensors(set.name).content(), download.tensors.content())
    }

    @Test
    fun `from the tensors of the vectors the uploads and the update follow byte by byte`() {
        val base = openChecked(Vectors.file("plan/global.blob"))
        val blobs =
            assignment.localPlan.uploadsList.map { upload ->
                val tensors = vectors.getAsJsonObject("uploads").tensors(upload.name)
                val floats = checkNotNull(BlobWriter.floatsOf(upload.codec))
                val raw =
                    if (upload.base.isEmpty()) {
                        BlobWriter.encode(tensors, floats)
                    } else {
                        BlobWriter.encode(Differences.subtract(tensors, base.tensors), floats, base.digest)
                    }
                assertArrayEquals(upload.name, Vectors.bytes("plan/upload-${upload.name}.blob"), raw)
                Blob.fromBytes(raw)
            }
        val header = JsonMessages.of<UpdateHeader>(vectors.getAsJsonObject("header"))
        val body = ByteArrayOutputStream().also(UpdateFrame(header, blobs)::writeTo)
        assertArrayEquals(Vectors.bytes("plan/update.bin"), body.toByteArray())
    }

    /** Entries with their class, sorted; files with the same bytes are copies 0, 1, ... */
    private fun album(): List<Pair<AlbumEntry, String>> {
        val seen = HashMap<String, Int>()
        val files = Vectors.file("plan/album").walk().filter { it.isFile }.sorted()
        return files
            .map { file ->
                val digest = sha256(file.readBytes())
                val copy = seen.merge(digest.toHex(), 1, Int::plus)!! - 1
                AlbumEntry(digest, copy) to file.parentFile.name
            }.sortedBy { it.first }
            .toList()
    }

    private fun entry(vector: JsonObject) = AlbumEntry(vector.hex("photo"), vector.int("copy"))
}
