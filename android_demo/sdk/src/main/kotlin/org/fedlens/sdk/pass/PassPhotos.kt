package org.fedlens.sdk.pass

import org.fedlens.sdk.AlbumEntry
import org.fedlens.sdk.engine.Rows
import org.fedlens.sdk.engine.Views

/**
 * Photos as a pass sees them.
 *
 * @property entries Of each row, sorted.
 * @property rows What programs take.
 */
internal class PhotoSet(
    val entries: List<AlbumEntry>,
    val rows: Rows,
) {
    init {
        require(entries.size == rows.labels.size) { "${entries.size} photos, ${rows.labels.size} labels" }
    }

    /** How many photos. */
    val size: Int get() = entries.size
}

/**
 * The photos of one pass.
 *
 * @property train Trained on.
 * @property test Evaluated on; never augmented.
 * @property skipped Names of files left out, sorted, by reason.
 */
internal class PassPhotos(
    val train: PhotoSet,
    val test: PhotoSet,
    val skipped: Map<String, List<String>>,
)

/**
 * The views that a pass takes of each photo, of those that are stored: a fixed number has been embedded when the photo
 * arrived, and the assignment's seed says which of them the pass sees.
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
