package org.fedlens.sdk

import org.fedlens.proto.v1.LastBatch
import org.fedlens.proto.v1.Stage

/** The photos of each step of a stage. */
public object Batches {
    /**
     * The rows of each step, computed lazily.
     *
     * The photos of an epoch are sorted by keyed hash. The last batch of an epoch is short, or, if the bundle says so,
     * filled cyclically from the start of the epoch's order. A stage counted in steps continues into the next epoch.
     *
     * @param entries The train photos in the order of the album; rows are indices into it.
     * @param seed The assignment's seed, 32 bytes.
     * @param stageIndex Index from 0; the stages of the fine-tuned evaluation come after all others.
     * @param batch Rows per step, from the manifest, at least 1.
     * @return The rows of each step: 1 to [batch] of them, exactly [batch] if batches are filled.
     */
    public fun of(
        entries: List<AlbumEntry>,
        seed: ByteArray,
        stageIndex: Int,
        stage: Stage,
        batch: Int,
        lastBatch: LastBatch,
    ): Sequence<IntArray> {
        require(batch > 0) { "a batch has at least one row, found $batch" }
        val steps = steps(stage, entries.size, batch)
        require(steps == 0L || entries.isNotEmpty()) { "$steps steps without a photo" }
        val fills = lastBatch == LastBatch.LAST_BATCH_FILLED
        return sequence {
            var left = steps
            var epoch = 0
            while (left > 0) {
                val order = KeyedHash.photoOrder(seed, stageIndex, epoch, entries)
                var first = 0
                while (first < order.size && left > 0) {
                    val rows = if (fills) batch else minOf(batch, order.size - first)
                    // Wraps around only where the last batch is filled.
                    yield(IntArray(rows) { order[(first + it) % order.size] })
                    first += batch
                    left--
                }
                epoch++
            }
        }
    }

    /** The number of steps that a stage takes with this many train photos. */
    public fun steps(
        stage: Stage,
        photos: Int,
        batch: Int,
    ): Long =
        if (stage.hasSteps()) {
            Integer.toUnsignedLong(stage.steps)
        } else {
            Integer.toUnsignedLong(stage.epochs) * ((photos.toLong() + batch - 1) / batch)
        }
}
