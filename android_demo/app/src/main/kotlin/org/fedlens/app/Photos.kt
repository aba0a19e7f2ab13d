package org.fedlens.app

import android.net.Uri
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.flow.MutableStateFlow
import kotlinx.coroutines.flow.StateFlow
import kotlinx.coroutines.flow.update
import kotlinx.coroutines.runBlocking
import kotlinx.coroutines.withContext
import org.fedlens.sdk.PhotoException
import org.fedlens.sdk.StateException
import org.fedlens.sdk.album.AlbumPhoto
import org.fedlens.sdk.album.PhotoAlbum
import java.io.IOException
import java.io.InputStream

/** The current content of the photo album, and its changes, one after another. */
internal class Photos(
    private val app: FedLensApp,
) {
    /**
     * The result of adding files.
     *
     * @property added Ids of the added photos.
     * @property refused Reasons for the refused files; one entry each.
     */
    data class Added(
        val added: List<Long>,
        val refused: List<Refusal>,
    )

    /** The reason for not adding a file. */
    enum class Refusal(
        /** True if the same file would be refused again. */
        val isFinal: Boolean = true,
    ) {
        HEIC,
        OTHER_FORMAT,
        DAMAGED,
        TOO_LARGE,
        CANNOT_BE_READ(isFinal = false),
        NO_ROOM(isFinal = false),
    }

    /**
     * The progress of adding files.
     *
     * @property left Number of files still to be added.
     * @property refused Reasons for the files refused so far.
     */
    data class Adding(
        val left: Int,
        val refused: List<Refusal> = emptyList(),
    )

    private val thread = Dispatchers.IO.limitedParallelism(1)
    private val found = MutableStateFlow<List<AlbumPhoto>?>(null)
    private val trouble = MutableStateFlow<String?>(null)
    private val going = MutableStateFlow(Adding(0))
    private val kept = MutableStateFlow(false)

    /** The reason why the album could not be read or changed last time; null if it could. */
    val problem: StateFlow<String?> = trouble

    /** Every photo, newest first; null until the album has been read. */
    val all: StateFlow<List<AlbumPhoto>?> = found

    /** The progress of adding files, which outlives the screen that started it. */
    val adding: StateFlow<Adding> = going

    /** Read the album, unless that has been done. */
    suspend fun read() {
        if (found.value == null) change { }
    }

    /** Add the files at these addresses. */
    suspend fun add(addresses: List<Uri>): Added =
        change { album ->
            val added = ArrayList<Long>()
            val refused = ArrayList<Refusal>()
            for ((done, address) in addresses.withIndex()) {
                going.value = Adding(addresses.size - done, refused.toList())
                try {
                    val content = app.contentResolver.openInputStream(address).use(::content)
                    added += album.add(content, address.lastPathSegment.orEmpty()).id
                    found.value = album.all()
                } catch (refusal: PhotoException) {
                    refused += reason(refusal)
                } catch (_: TooLarge) {
                    refused += Refusal.TOO_LARGE
                } catch (_: IOException) {
                    refused += Refusal.CANNOT_BE_READ
                } catch (_: SecurityException) {
                    refused += Refusal.CANNOT_BE_READ
                } catch (_: StateException) {
                    refused += Refusal.NO_ROOM
                }
            }
            going.value = Adding(0, refused)
            Added(added, refused)
        } ?: Added(emptyList(), emptyList()).also { going.value = Adding(0) }

    /** True while a photo that was taken waits to be added once more, because there was no room for it, for instance. */
    val keepsTaken: StateFlow<Boolean> = kept

    /** Add the photo that the camera app has written. */
    suspend fun addTaken() {
        val result = add(listOf(CaptureProvider.ADDRESS))
        val isDone = result.added.isNotEmpty() || result.refused.any { it.isFinal }
        kept.value =
            withContext(Dispatchers.IO) {
                val file = CaptureProvider.file(app)
                if (isDone) file.delete()
                !isDone && file.length() > 0
            }
    }

    /** Clear the refusals after they have been shown. */
    fun dismissRefused() = going.update { it.copy(refused = emptyList()) }

    /** Give photos their class; null takes it away. */
    suspend fun label(
        ids: Collection<Long>,
        label: String?,
    ) {
        change { album -> ids.forEach { album.label(it, label) } }
        app.learning.embedNew()
    }

    /** Give a photo its class. */
    suspend fun label(
        id: Long,
        label: String,
    ) = label(listOf(id), label)

    /** Store the model's suggestion. */
    suspend fun suggest(
        id: Long,
        label: String,
        probability: Double,
    ) {
        change { it.suggest(id, label, probability) }
    }

    /** Erase one photo and everything computed from it. */
    suspend fun erase(id: Long) {
        change { it.delete(id) }
    }

    /** Erase every photo with everything else of FedLens, even of an album that cannot be opened any more. */
    suspend fun eraseAll() {
        // After what is under way.
        withContext(thread) { }
        app.fedlens.eraseHere()
        found.value = null
        trouble.value = null
        kept.value = false
    }

    /** Wait for what is under way, at the end of the process. */
    fun finish() = runBlocking(thread) { }

    /** Run [work] with the album and refresh the content; null on failure, with the reason in [problem]. */
    private suspend fun <T> change(work: (PhotoAlbum) -> T): T? =
        withContext(thread) {
            try {
                val album = app.fedlens.album()
                val result = work(album)
                found.value = album.all()
                trouble.value = null
                result
            } catch (failure: StateException) {
                trouble.value = failure.message.orEmpty()
                null
            }
        }

    private fun content(stream: InputStream?): ByteArray {
        if (stream == null) throw IOException("nothing is there")
        val content = java.io.ByteArrayOutputStream()
        val piece = ByteArray(PIECE_BYTES)
        while (true) {
            val size = stream.read(piece)
            if (size < 0) return content.toByteArray()
            content.write(piece, 0, size)
            if (content.size() > MOST_BYTES) throw TooLarge()
        }
    }

    private fun reason(refusal: PhotoException): Refusal =
        when (refusal.reason) {
            PhotoException.Reason.HEIC -> Refusal.HEIC
            PhotoException.Reason.UNKNOWN_FORMAT -> Refusal.OTHER_FORMAT
            PhotoException.Reason.DAMAGED -> Refusal.DAMAGED
            PhotoException.Reason.TOO_LARGE -> Refusal.TOO_LARGE
        }

    private class TooLarge : Exception()

    private companion object {
        const val PIECE_BYTES = 1 shl 16

        // Up to three copies are in memory for a moment, in an app that may have only 128 MiB.
        const val MOST_BYTES = 32 shl 20
    }
}
