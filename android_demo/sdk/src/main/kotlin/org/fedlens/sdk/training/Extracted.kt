package org.fedlens.sdk.training

import com.google.protobuf.ByteString
import org.fedlens.proto.v1.Manifest
import org.fedlens.proto.v1.SlotKind
import org.fedlens.sdk.Manifests
import org.fedlens.sdk.engine.Engine
import org.fedlens.sdk.engine.Rows
import org.fedlens.sdk.store.FeatureCache
import org.fedlens.sdk.store.FeatureSpace
import java.nio.ByteBuffer

/**
 * An extractor, as a set of tensors.
 *
 * @property sha256 Digest of its blob.
 * @property read Reads the tensors; called only if outputs are missing in the cache.
 */
internal class Extractor(
    val sha256: ByteArray,
    val read: () -> Tensors,
)

/**
 * The concatenated outputs of several frozen extractors, computed once per photo and extractor, and cached.
 *
 * A photo's position in the program's batch follows from its digest, and other positions do not change its outputs. So
 * the outputs do not depend on which photos are new.
 *
 * @param check Called from time to time; an exception from it ends the work.
 */
internal class Extracted(
    private val engine: Engine,
    private val cache: FeatureCache,
    private val check: () -> Unit = {},
) {
    private val manifest = engine.bundle.manifest
    private val width = width(manifest)

    /**
     * The same photos with rows [n, extractors * d]: the outputs of each extractor in order, zeros for null.
     *
     * @throws org.fedlens.sdk.EngineException An extractor does not fit the program, or gave a NaN.
     */
    fun sideBySide(
        photos: PreparedPhotos,
        extractors: List<Extractor?>,
    ): PreparedPhotos {
        val (train, test) = sideBySide(listOf(photos.train, photos.test), extractors)
        return PreparedPhotos(train, test, photos.skipped)
    }

    /** The same sets of photos with such rows. */
    fun sideBySide(
        parts: List<PhotoSet>,
        extractors: List<Extractor?>,
    ): List<PhotoSet> {
        val inputs = HashMap<ByteString, FloatArray>()
        for (part in parts) {
            part.entries.forEachIndexed { row, entry ->
                inputs.getOrPut(ByteString.copyFrom(entry.photo)) { part.row(row) }
            }
        }
        val blocks = extractors.map { if (it == null) null else outputs(inputs, it) }
        return parts.map { replaced(it, blocks) }
    }

    private fun replaced(
        part: PhotoSet,
        blocks: List<Map<ByteString, FloatArray>?>,
    ): PhotoSet {
        val rows = FloatArray(Math.multiplyExact(part.size, blocks.size * width))
        part.entries.forEachIndexed { row, entry ->
            val key = ByteString.copyFrom(entry.photo)
            blocks.forEachIndexed { i, block ->
                block?.getValue(key)?.copyInto(rows, (row * blocks.size + i) * width, 0, width)
            }
        }
        return PhotoSet(part.entries, Rows(rows, part.rows.labels))
    }

    /** The extractor's outputs, [d], by photo digest. */
    private fun outputs(
        inputs: Map<ByteString, FloatArray>,
        extractor: Extractor,
    ): Map<ByteString, FloatArray> {
        val space = FeatureSpace.extracted(manifest, Requirements.FORMAT, extractor.sha256)
        val outputs = cache.get(space, inputs.keys).mapValuesTo(HashMap()) { (_, raw) -> raw.toFloats() }
        val missing = (inputs.keys - outputs.keys).sortedWith(ByteString.unsignedLexicographicalComparator())
        if (missing.isEmpty()) return outputs
        val tensors = extractor.read()
        val batch = manifest.batch
        for (some in placed(missing, batch).chunked(BATCHES_AT_ONCE)) {
            check()
            val size = inputs.getValue(missing[0]).size
            val rows = FloatArray(Math.multiplyExact(some.size * batch, size))
            val places = HashMap<ByteString, Int>()
            some.forEachIndexed { i, one -> one.forEach { (place, digest) -> places[digest] = i * batch + place } }
            for ((digest, place) in places) inputs.getValue(digest).copyInto(rows, place * size)
            val found = engine.extract(tensors, rows)
            val fresh = places.mapValues { (_, place) -> found.copyOfRange(place * width, (place + 1) * width) }
            cache.put(space, fresh.mapValues { it.value.toBytes() })
            outputs += fresh
        }
        return outputs
    }

    companion object {
        // Batches per set-up of the program; between set-ups the work can be interrupted.
        private const val BATCHES_AT_ONCE = 8

        /** The row of one photo, [extractors * d], from its inputs; failures as in [sideBySide]. */
        fun oneRow(
            input: FloatArray,
            engine: Engine,
            extractors: List<Tensors?>,
        ): FloatArray {
            val width = width(engine.bundle.manifest)
            val row = FloatArray(extractors.size * width)
            extractors.forEachIndexed { i, one ->
                if (one != null) engine.extract(one, input).copyInto(row, i * width, 0, width)
            }
            return row
        }

        /** The fewest batches that hold these photos, each at its position. */
        fun placed(
            digests: List<ByteString>,
            batch: Int,
        ): List<Map<Int, ByteString>> {
            val batches = ArrayList<HashMap<Int, ByteString>>()
            val taken = HashMap<Int, Int>()
            for (digest in digests) {
                val first = ByteBuffer.wrap(digest.toByteArray()).getLong()
                val place = java.lang.Long.remainderUnsigned(first, batch.toLong()).toInt()
                val number = taken.getOrDefault(place, 0)
                if (number == batches.size) batches += HashMap<Int, ByteString>()
                batches[number][place] = digest
                taken[place] = number + 1
            }
            return batches
        }

        private fun PhotoSet.row(number: Int): FloatArray {
            val width = rows.inputs.size / size
            return rows.inputs.copyOfRange(number * width, (number + 1) * width)
        }

        private fun width(manifest: Manifest): Int =
            Manifests
                .program(manifest, "extract")
                .outputsList
                .first { it.kind == SlotKind.SLOT_KIND_FEATURES }
                .shapeList[1]
                .toInt()
    }
}
