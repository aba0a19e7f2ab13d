package org.fedlens.sdk.training

import org.fedlens.sdk.AlbumEntry
import org.fedlens.sdk.AssignmentException
import org.fedlens.sdk.BlobException
import org.fedlens.sdk.Bundle
import org.fedlens.sdk.KeyedHash
import org.fedlens.sdk.blob.Blob
import org.fedlens.sdk.blob.FloatTensor
import org.fedlens.sdk.blob.LongTensor
import org.fedlens.sdk.engine.Rows
import org.fedlens.sdk.engine.Views
import java.io.IOException

/**
 * The photos of local training as rows.
 *
 * @property entries The photo of each row, sorted.
 * @property rows Inputs for programs.
 */
internal class PhotoSet(
    val entries: List<AlbumEntry>,
    val rows: Rows,
) {
    init {
        require(entries.size == rows.labels.size) { "${entries.size} photos, ${rows.labels.size} labels" }
    }

    /** Number of photos. */
    val size: Int get() = entries.size

    /**
     * The photos to train on and those for validation, about [percent] of 100 and the same in every round; both are all
     * photos if there are fewer than 5, or if one of them would be empty.
     */
    fun withoutValidation(percent: Int): Pair<PhotoSet, PhotoSet> {
        val (validation, train) = entries.indices.partition { KeyedHash.isValidationPhoto(entries[it].photo, percent) }
        if (size < LEAST_DIVIDED || validation.isEmpty() || train.isEmpty()) return this to this
        return at(train.toIntArray()) to at(validation.toIntArray())
    }

    private fun at(indices: IntArray): PhotoSet {
        val width = rows.inputs.size / size
        val inputs = FloatArray(indices.size * width)
        for ((i, row) in indices.withIndex()) rows.inputs.copyInto(inputs, i * width, row * width, (row + 1) * width)
        val labels = LongArray(indices.size) { rows.labels[indices[it]] }
        val views =
            rows.views?.let { all ->
                ChosenViews(all.width, FloatArray(indices.size * all.width).also { all.take(indices, it) })
            }
        return PhotoSet(indices.map(entries::get), Rows(inputs, labels, views))
    }

    companion object {
        private const val LEAST_DIVIDED = 5

        /**
         * A bundle's public photos, in their order.
         *
         * @throws AssignmentException Their part is damaged, or does not hold them.
         */
        fun public(bundle: Bundle): PhotoSet {
            val public = bundle.manifest.public
            val digest = public.sha256.toByteArray()
            val tensors =
                try {
                    Blob.open(bundle.part(digest), digest).tensors
                } catch (error: BlobException) {
                    throw unusable("the public photos cannot be read: ${error.message}", error)
                } catch (error: IOException) {
                    throw unusable("the public photos cannot be read", error)
                }
            val (inputs, labels) = tensors["input"] as? FloatTensor to tensors["label"] as? LongTensor
            if (inputs?.shape?.firstOrNull() != public.rows || labels?.shape != listOf(public.rows)) {
                throw unusable("there are not ${public.rows} public photos")
            }
            val nowhere = ByteArray(KeyedHash.DIGEST_BYTES)
            val entries = List(Math.toIntExact(public.rows)) { AlbumEntry(nowhere, it) }
            return PhotoSet(entries, Rows(inputs.toArray(), labels.toArray()))
        }

        private fun unusable(
            message: String,
            cause: Exception? = null,
        ) = AssignmentException(AssignmentException.Reason.BUNDLE, message, cause)
    }
}

/**
 * The photos for one local training.
 *
 * @property train Photos to train on.
 * @property test Photos to evaluate on; never augmented.
 * @property skipped Names of skipped files, sorted, by reason.
 */
internal class PreparedPhotos(
    val train: PhotoSet,
    val test: PhotoSet,
    val skipped: Map<String, List<String>>,
)

/**
 * The views chosen for each photo: a fixed number is embedded when a photo arrives, and the assignment's seed selects
 * those that local training uses.
 *
 * @param chosen float32 [n, V, F].
 */
internal class ChosenViews(
    override val width: Int,
    private val chosen: FloatArray,
) : Views {
    override fun take(
        rows: IntArray,
        into: FloatArray,
    ) {
        for ((i, row) in rows.withIndex()) chosen.copyInto(into, i * width, row * width, (row + 1) * width)
    }
}
