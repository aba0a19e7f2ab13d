package org.fedlens.sdk.training

import org.fedlens.sdk.AlbumEntry
import org.fedlens.sdk.engine.Rows
import org.fedlens.sdk.engine.Views

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
