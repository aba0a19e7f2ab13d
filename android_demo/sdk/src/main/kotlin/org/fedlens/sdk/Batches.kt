package org.fedlens.sdk

import org.fedlens.proto.v1.LastBatch
import org.fedlens.proto.v1.Train

/** The photos of each step of a training. */
internal object Batches {
    /**
     * The rows of each step, computed lazily.
     *
     * The photos of an epoch are sorted by keyed hash. The last batch of an epoch is short, or, if the bundle says so,
     * filled cyclically from the start of the epoch's order. A training counted in steps continues into the next epoch.
     *
     * @param entries The photos to train on, sorted; rows are indices into them.
     * @param seed The assignment's seed, 32 bytes.
     * @param training Number of the instruction in the local plan among those that train, from 0.
     * @param batch Rows per step of its program, at least 1.
     * @return The rows of each step: 1 to [batch] of them, exactly [batch] if batches are filled.
     */
    fun of(
        entries: List<AlbumEntry>,
        seed: ByteArray,
        training: Int,
        train: Train,
        batch: Int,
        lastBatch: LastBatch,
    ): Sequence<IntArray> {
        require(batch > 0) { "a batch has at least one row, found $batch" }
        val steps = steps(train, entries.size, batch)
        require(steps == 0L || entries.isNotEmpty()) { "$steps steps without a photo" }
        val fills = lastBatch == LastBatch.LAST_BATCH_FILLED
        return sequence {
            var left = steps
            var epoch = 0
            while (left > 0) {
                val order = KeyedHash.photoOrder(seed, training, epoch, entries)
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

    /** The number of steps of a training on this many photos. */
    fun steps(
        train: Train,
        photos: Int,
        batch: Int,
    ): Long =
        if (train.hasSteps()) {
            Integer.toUnsignedLong(train.steps)
        } else {
            Integer.toUnsignedLong(train.epochs) * ((photos.toLong() + batch - 1) / batch)
        }
}
