package org.fedlens.app

import android.net.Uri
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.asCoroutineDispatcher
import kotlinx.coroutines.flow.MutableStateFlow
import kotlinx.coroutines.flow.StateFlow
import kotlinx.coroutines.flow.update
import kotlinx.coroutines.withContext
import org.fedlens.sdk.PhotoException
import org.fedlens.sdk.StateException
import org.fedlens.sdk.album.AlbumPhoto
import org.fedlens.sdk.album.PhotoAlbum
import java.io.IOException
import java.io.InputStream
import java.util.concurrent.Executors

/** The album, worked on in a thread of its own, and what it holds at the moment. */
internal class Photos(
    private val app: FedLensApp,
) {
    /**
     * What became of files that were to be added.
     *
     * @property added Ids of those that are in the album now.
     * @property refused Why others are not; one entry for each.
     */
    data class Added(
        val added: List<Long>,
        val refused: List<Refusal>,
    )

    /** Why a file is no photo of the album. */
    enum class Refusal { HEIC, OTHER_FORMAT, DAMAGED, TOO_LARGE, CANNOT_BE_READ, NO_ROOM }

    /**
     * How adding files goes on, or has ended.
     *
     * @property left Files that are still to be added.
     * @property refused Why others were not, this time.
     */
    data class Adding(
        val left: Int,
        val refused: List<Refusal> = emptyList(),
    )

    private val executor = Executors.newSingleThreadExecutor { Thread(it, "album").apply { isDaemon = true } }
    private val thread = executor.asCoroutineDispatcher()
    private val found = MutableStateFlow<List<AlbumPhoto>?>(null)
    private val trouble = MutableStateFlow<String?>(null)
    private val going = MutableStateFlow(Adding(0))
    private var opened: PhotoAlbum? = null

    /** Why the album could not be read or changed the last time; null: it could. */
    val problem: StateFlow<String?> = trouble

    /** Every photo, newest first; null while it has not been read yet. */
    val all: StateFlow<List<AlbumPhoto>?> = found

    /** Outlives the screen from which files are added. */
    val adding: StateFlow<Adding> = going

    /** Reads the album, if nobody has so far. */
    suspend fun read() {
        if (found.value == null) change { }
    }

    /**
     * Calls [take] with the digests of photos that are erased, as [PhotoAlbum.onDeleted] does; null: nobody takes them.
     * Those that cannot be told now are remembered.
     */
    suspend fun followDeletions(take: ((List<ByteArray>) -> Unit)?) {
        // Not in the album's thread: whoever takes them waits for the client's, which a training holds.
        val album = withContext(thread) { opened } ?: return
        withContext(Dispatchers.IO) {
            try {
                album.onDeleted(take)
            } catch (_: StateException) {
                // They are still in the album's list.
            }
        }
    }

    /**
     * The album itself, for the SDK's client.
     *
     * @throws StateException It cannot be opened.
     */
    suspend fun album(): PhotoAlbum = withContext(thread) { open() }

    /** Adds what these addresses lead to. */
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

    /** What was refused has been read. */
    fun dismissRefused() = going.update { it.copy(refused = emptyList()) }

    /** Gives a photo its class. */
    suspend fun label(
        id: Long,
        label: String,
    ) {
        change { it.label(id, label) }
        app.learning.embedNew()
    }

    /** Notes the model's opinion. */
    suspend fun suggest(
        id: Long,
        label: String,
        probability: Double,
    ) {
        change { it.suggest(id, label, probability) }
    }

    /** Erases one photo and what was computed of it. */
    suspend fun erase(id: Long) {
        change { it.delete(id) }
    }

    /** Erases every photo, even of an album that cannot be opened any more. */
    suspend fun eraseAll() {
        withContext(thread) {
            close()
            app.albumFolder.deleteRecursively()
            found.value = null
            trouble.value = null
        }
    }

    /** For the end of the process; waits for what is under way. */
    fun closeNow() {
        executor.submit(::close).get()
        executor.shutdown()
    }

    /** Null where that could not be done; [problem] says why. */
    private suspend fun <T> change(work: (PhotoAlbum) -> T): T? =
        withContext(thread) {
            try {
                val album = open()
                val result = work(album)
                found.value = album.all()
                trouble.value = null
                result
            } catch (failure: StateException) {
                trouble.value = failure.message.orEmpty()
                null
            }
        }

    private fun open(): PhotoAlbum =
        opened ?: PhotoAlbum.open(app.albumFolder, app.surroundings.platform::openDatabase).also { opened = it }

    private fun close() {
        opened?.close()
        opened = null
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

        // Read into memory, for a moment three times: in an app that may have 128 MiB.
        const val MOST_BYTES = 32 shl 20
    }
}
