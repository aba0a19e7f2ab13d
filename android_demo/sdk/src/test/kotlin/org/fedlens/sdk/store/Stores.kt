package org.fedlens.sdk.store

import com.google.protobuf.ByteString
import kotlinx.coroutines.runBlocking
import org.fedlens.proto.v1.Answer
import org.fedlens.proto.v1.Assignment
import org.fedlens.proto.v1.Dtype
import org.fedlens.proto.v1.UpdateHeader
import org.fedlens.proto.v1.UploadedBlob
import org.fedlens.sdk.album.PhotoAlbum
import org.fedlens.sdk.blob.Blob
import org.fedlens.sdk.blob.BlobWriter
import org.fedlens.sdk.blob.FloatTensor
import org.fedlens.sdk.sha256
import org.fedlens.sdk.toHex
import java.io.Closeable
import java.io.File

const val SERVER = "https://fl.example.org"
const val TASK = 7L

internal fun assignment(
    round: Long,
    task: Long = TASK,
): Assignment =
    Assignment
        .newBuilder()
        .setTask(task)
        .setRound(round)
        .setAnswer(Answer.ANSWER_UPDATE)
        .build()

internal fun header(uploads: List<StoredBlob> = emptyList()): UpdateHeader {
    val header = UpdateHeader.newBuilder().setProtocol(1)
    for ((number, upload) in uploads.withIndex()) {
        val digest = ByteString.copyFrom(upload.sha256)
        header.addUploads(UploadedBlob.newBuilder().setName("upload-$number").setSha256(digest).setSize(upload.size))
    }
    return header.build()
}

/** Tensor `w` of [count] float32 that are all [value]; from 16,000 on they are too many for a row. */
internal fun tensors(
    value: Int,
    count: Int = 3,
): Map<String, FloatTensor> =
    FloatArray(count) { value.toFloat() }.let { mapOf("w" to FloatTensor.of(listOf(count.toLong()), it)) }

internal fun Blob.firstValue(): Int = (tensors.getValue("w") as FloatTensor).toArray()[0].toInt()

/** The stores of a client in one folder, assembled as for a client. */
internal class Stores(
    private val folder: File,
    private val point: (String) -> Unit = {},
    openDatabase: (File) -> Database,
) : Closeable {
    val state = StateFolder.open(File(folder, "state"), SERVER, openDatabase)
    val files = TensorFiles(state.tensorFolder)
    val clientState = StateTensors(state, files)
    val journal = Journal(state)
    val outbox = Outbox(state, files, clientState, journal)
    val album = PhotoAlbum.open(File(folder, "album"), openDatabase)
    val cache = Cache(File(folder, "cache"), 1 shl 20)

    fun run(step: Step) {
        when (step) {
            is Step.Put -> put(step)
            Step.Deliver -> outbox.first()?.let(outbox::delivered)
            Step.Refuse -> outbox.first()?.let(outbox::refused)
            is Step.Add -> album.add(photo(step.content), "${step.content}.bmp", step.label)
            is Step.Label -> album.label(step.id, step.label)
            is Step.Delete -> album.delete(step.id)
            Step.DeleteAll -> album.deleteAll()
            is Step.Obtain -> obtain(step.blob)
        }
    }

    private fun put(step: Step.Put) {
        val count = if (step.large) LARGE else 3
        val uploads = if (step.upload) listOf(files.store(tensors(step.value, count), F32)) else emptyList()
        point("between two files")
        val newState = if (step.state) mapOf("mine" to files.store(tensors(-step.value, count), F32)) else emptyMap()
        outbox.put(assignment(step.round), header(uploads), uploads, newState)
    }

    private fun obtain(blob: Int) =
        runBlocking {
            val content = part(blob)
            cache.obtain(Wanted(sha256(content), content.size.toLong())) { _, into, _ ->
                val half = content.size / 2
                if (into.length() < half) into.appendBytes(content.copyOfRange(into.length().toInt(), half))
                point("half of a download")
                into.appendBytes(content.copyOfRange(into.length().toInt(), content.size))
            }
        }

    fun snapshot(): Snapshot {
        val waiting =
            state.transaction { db ->
                db.query(
                    "SELECT round, blob_sha256, blob FROM outbox LEFT JOIN outbox_blobs USING (task, round) " +
                        "ORDER BY place",
                ) {
                    Triple(it.long(0), it.bytesOrNull(1), it.bytesOrNull(2))
                }
            }
        val sets =
            state.transaction { db ->
                db.query("SELECT round, is_current FROM client_state ORDER BY is_current DESC, round") {
                    it.long(0) to (it.long(1) == 1L)
                }
            }
        return Snapshot(
            outbox = waiting.map { (round, digest, inline) -> round to digest?.let { value(it, inline) } },
            current = clientState.current(TASK, "mine")?.firstValue(),
            clientState = sets,
            journal = journal.entries().map { (it as JournalEntry.Upload).round to it.outcome },
            largeValues = checked(files.folder).map { Blob.open(File(files.folder, it)).firstValue() }.toSet(),
            photos = album.all().reversed().map { Triple(it.id, PHOTOS.getValue(it.sha256.toHex()), it.label) },
            photoFiles = checked(File(folder, "album/photos")).map { PHOTOS.getValue(it) }.toSet(),
            parts = checked(File(folder, "cache/parts")).map { PARTS.getValue(it) }.toSet(),
        )
    }

    private fun value(
        digest: ByteArray,
        inline: ByteArray?,
    ) = files.open(digest, inline).firstValue()

    /** The names of all files, each of which must be the digest of its content. */
    private fun checked(folder: File): List<String> =
        checkNotNull(folder.list()).toList().onEach { name ->
            check(sha256(File(folder, name).readBytes()).toHex() == name) { "$folder/$name is damaged" }
        }

    override fun close() {
        album.close()
        state.close()
    }

    companion object {
        const val LARGE = 20_000
        val F32 = Dtype.DTYPE_FLOAT32

        fun photo(content: Int): ByteArray = "BM photo number $content".toByteArray()

        fun part(blob: Int): ByteArray = BlobWriter.encode(tensors(blob, 100 * (blob + 1)))

        private val PHOTOS = (0 until Script.CONTENTS).associateBy { sha256(photo(it)).toHex() }
        private val PARTS = (0 until Script.CONTENTS).associateBy { sha256(part(it)).toHex() }
    }
}
