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
    private val vectors = Vectors.json("pass/pass.json")
    private val assignment = Assignment.parseFrom(Vectors.bytes("pass/assignment.bin"))
    private val manifest = Manifests.parse(Vectors.bytes("bundle/manifest.pb"))

    @Test
    fun `the assignment reads as what its json says`() {
        assertEquals(JsonMessages.of<Assignment>(vectors.getAsJsonObject("assignment")), assignment)
        assertArrayEquals(Vectors.bytes("pass/assignment.bin"), assignment.toByteArray())
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
    fun `the steps of each stage take the rows of the vectors`() {
        val train = vectors.getAsJsonObject("train").objects("photos").map(::entry)
        val stages = assignment.localPlan.stagesList
        val rows =
            stages.mapIndexed { i, stage ->
                Batches
                    .of(train, assignment.seed.toByteArray(), i, stage, manifest.batch, manifest.lastBatch)
                    .map { it.toList() }
                    .toList()
            }
        assertEquals(vectors.list("stages").map { stage -> stage.asJsonArray.map { it.asJsonArray.ints() } }, rows)
    }

    @Test
    fun `the download is the set of the vectors, and the new client state is selected as in them`() {
        val set = assignment.getSets(0)
        val download = openChecked(Vectors.file("pass/global.blob"))
        assertArrayEquals(set.sha256.toByteArray(), download.digest)
        assertEquals(set.size, download.size)
        assertEquals(vectors.getAsJsonObject("sets").tensors(set.name).content(), download.tensors.content())
        val trained = vectors.tensors("trained")
        for (keep in assignment.localPlan.keepList) {
            val names = Manifests.select(manifest.tensorsList, keep.tensors).map { it.name }
            val newState = names.associateWith(trained::getValue)
            assertEquals(vectors.getAsJsonObject("kept").tensors(keep.set).content(), newState.content())
        }
    }

    @Test
    fun `from the trained weights the upload follows byte by byte`() {
        val upload = assignment.localPlan.upload
        val base = openChecked(Vectors.file("pass/global.blob"))
        val trained = vectors.tensors("trained")
        val names = Manifests.select(manifest.tensorsList, upload.tensors).map { it.name }
        val selected = names.associateWith(trained::getValue)
        val floats = checkNotNull(BlobWriter.floatsOf(upload.codec))
        val raw = BlobWriter.encode(Differences.subtract(selected, base.tensors), floats, base.digest)
        assertArrayEquals(Vectors.bytes("pass/upload.blob"), raw)
        val header = JsonMessages.of<UpdateHeader>(vectors.getAsJsonObject("header"))
        val body = ByteArrayOutputStream().also(UpdateFrame(header, Blob.fromBytes(raw))::writeTo)
        assertArrayEquals(Vectors.bytes("pass/update.bin"), body.toByteArray())
    }

    /** Entries with their class, sorted; files with the same bytes are copies 0, 1, ... */
    private fun album(): List<Pair<AlbumEntry, String>> {
        val seen = HashMap<String, Int>()
        val files = Vectors.file("pass/album").walk().filter { it.isFile }.sorted()
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
