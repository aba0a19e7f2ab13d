package org.fedlens.sdk

import org.fedlens.proto.v1.LastBatch
import org.fedlens.proto.v1.Stage

/** Which photos stand in which step of a stage. */
public object Batches {
    /**
     * The rows of each step, one after the other; each is made when it is asked for.
     *
     * The photos of an epoch are sorted by keyed hash. The last batch of an epoch is short, or, if the bundle says so,
     * filled cyclically from the start of the epoch's order. A stage that is counted in steps runs on into the next
     * epoch.
     *
     * @param entries The train photos in the order of the album; rows are indices into it.
     * @param seed Of the assignment, 32 bytes.
     * @param stageIndex Counts from 0; stages that are thrown away are numbered behind the others.
     * @param batch Rows of a step, from the manifest, at least 1.
     * @return Of each step its rows: 1 to [batch] of them, exactly [batch] where they are filled.
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
                    // Past the end only where the batch is filled: then from the start of the order, round and round.
                    yield(IntArray(rows) { order[(first + it) % order.size] })
                    first += batch
                    left--
                }
                epoch++
            }
        }
    }

    /** How many steps a stage takes with so many train photos. */
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
