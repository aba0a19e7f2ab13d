package org.fedlens.sdk.training

import com.google.protobuf.ByteString
import org.fedlens.sdk.KeyedHash
import org.fedlens.sdk.PhotoException
import org.fedlens.sdk.album.Example
import org.fedlens.sdk.album.Examples
import org.fedlens.sdk.album.Features
import org.fedlens.sdk.engine.Engine
import org.fedlens.sdk.engine.Rows
import org.fedlens.sdk.photo.PhotoDecoder
import org.fedlens.sdk.store.FeatureCache
import org.fedlens.sdk.store.FeatureSpace
import java.io.IOException

/**
 * The preparation of an album's snapshot as rows for programs, decoding and embedding each photo only once.
 *
 * @param engine Engine that embeds photos.
 * @param cache Cache of features.
 * @param onlyTest True if every photo is a test photo, as for an evaluator.
 * @param onPhoto Called after each photo that was not in the cache, with the numbers of photos done and in total. An
 *     exception from it ends the preparation; computed features stay.
 */
internal class Preparation(
    snapshot: Examples,
    private val engine: Engine,
    decoder: PhotoDecoder,
    private val cache: FeatureCache,
    private val onlyTest: Boolean = false,
    private val onPhoto: (done: Int, total: Int) -> Unit = { _, _ -> },
) {
    private val manifest = engine.bundle.manifest
    private val labels = manifest.classNamesList.withIndex().associate { (index, name) -> name to index.toLong() }
    private val reader = PhotoReader(engine, decoder)
    private val skipped = snapshot.skipped.mapValuesTo(LinkedHashMap()) { (_, names) -> names.toMutableList() }
    private val known = ArrayList<Example>()

    init {
        for (photo in snapshot.labelled.sortedBy { it.entry }) {
            if (photo.label in labels) known += photo else skip(photo, "class '${photo.label}' is not in the model")
        }
    }

    /**
     * Read, decode and embed photos that are not in the cache.
     *
     * @param seed The assignment's seed, which selects the stored views of each train photo.
     * @throws org.fedlens.sdk.EngineException A photo could not be embedded.
     */
    fun photos(seed: ByteArray): PreparedPhotos {
        val features = features(known)
        val views =
            views(features.keys) { photo, raw ->
                val choice = KeyedHash.viewChoice(seed, photo.entry.photo, manifest.storedViews, manifest.views)
                val width = raw.size / Float.SIZE_BYTES / manifest.storedViews
                choice.map { raw.toFloats(it * width, width) }.joined()
            }
        val usable = known.filter { it.key in features && (views == null || !isTrainedOn(it) || it.key in views) }
        val (train, test) = usable.partition(::isTrainedOn)
        return PreparedPhotos(
            photoSet(train, features, views),
            photoSet(test, features, null),
            skipped.mapValues { (_, names) -> names.sorted() },
        )
    }

    /** The test photos alone; failures as above. */
    fun test(): PhotoSet {
        val test = known.filterNot(::isTrainedOn)
        val features = features(test)
        return photoSet(test.filter { it.key in features }, features, null)
    }

    /**
     * Embed these photos into the cache, as any assignment would.
     *
     * @return The number of photos embedded for the first time.
     * @throws org.fedlens.sdk.EngineException A photo could not be embedded.
     */
    fun embed(): Int {
        val fresh = HashSet<ByteString>()
        val features =
            values(
                known.filter { it !is Features },
                FeatureSpace.of(manifest, Requirements.FORMAT),
                reader::features,
                fresh,
            ) { _, _ -> }
        views(features.keys, fresh) { _, _ -> }
        return fresh.size
    }

    private fun features(of: List<Example>): Map<ByteString, FloatArray> {
        val space = FeatureSpace.of(manifest, Requirements.FORMAT)
        val found = values(of.filter { it !is Features }, space, reader::features) { _, raw -> raw.toFloats() }
        val ready = of.filterIsInstance<Features>().groupBy { reader.fits(it.values) }
        ready[false]?.forEach { skip(it, UNFIT) }
        return found + ready[true].orEmpty().associate { it.key to it.values }
    }

    /** Views of train photos; null if the bundle has none. */
    private fun <T> views(
        readable: Set<ByteString>,
        fresh: MutableSet<ByteString> = HashSet(),
        take: (Example, ByteArray) -> T,
    ): Map<ByteString, T>? {
        if (manifest.storedViews == 0) return null
        val (ready, wanted) = known.filter { isTrainedOn(it) && it.key in readable }.partition { it is Features }
        ready.forEach { skip(it, NO_VIEWS) }
        return values(wanted, FeatureSpace.storedViews(manifest, Requirements.FORMAT), reader::storedViews, fresh, take)
    }

    /**
     * The result of [take] on each photo's cached value under [space], by digest; missing values are computed,
     * unreadable photos skipped. [take] keeps memory low: of many stored views it needs only a few.
     */
    private fun <T> values(
        wanted: List<Example>,
        space: ByteArray,
        compute: (Example) -> FloatArray,
        computed: MutableSet<ByteString> = HashSet(),
        take: (Example, ByteArray) -> T,
    ): Map<ByteString, T> {
        val found = HashMap<ByteString, T>()
        val photos = wanted.distinctBy { it.key }
        for (some in photos.chunked(AT_ONCE)) {
            val there = cache.get(space, some.map { it.key })
            for (photo in some) there[photo.key]?.let { found[photo.key] = take(photo, it) }
        }
        val missing = photos.filter { it.key !in found }
        val fresh = HashMap<ByteString, ByteArray>()
        try {
            for ((i, photo) in missing.withIndex()) {
                val raw = attempt(photo) { compute(photo).toBytes() }
                if (raw != null) {
                    fresh[photo.key] = raw
                    found[photo.key] = take(photo, raw)
                    computed += photo.key
                }
                if (fresh.size == AT_ONCE) {
                    cache.put(space, fresh)
                    fresh.clear()
                }
                onPhoto(i + 1, missing.size)
            }
        } finally {
            if (fresh.isNotEmpty()) cache.put(space, fresh)
        }
        return found
    }

    private fun <T> attempt(
        photo: Example,
        compute: () -> T,
    ): T? {
        try {
            return compute()
        } catch (_: PhotoException) {
            skip(photo, UNREADABLE)
        } catch (_: IOException) {
            skip(photo, CHANGED)
        } catch (_: OutOfMemoryError) {
            skip(photo, TOO_LARGE)
        }
        return null
    }

    private fun photoSet(
        photos: List<Example>,
        features: Map<ByteString, FloatArray>,
        views: Map<ByteString, FloatArray>?,
    ): PhotoSet {
        val inputs = photos.map { features.getValue(it.key) }.joined()
        val classes = LongArray(photos.size) { labels.getValue(photos[it].label) }
        val chosen =
            views?.let { all ->
                val rows = photos.map { all.getValue(it.key) }
                ChosenViews(rows.firstOrNull()?.size ?: 0, rows.joined())
            }
        return PhotoSet(photos.map { it.entry }, Rows(inputs, classes, chosen))
    }

    private fun isTrainedOn(photo: Example) = !(onlyTest || photo.isTest)

    private fun skip(
        photo: Example,
        reason: String,
    ) {
        skipped.getOrPut(reason, ::ArrayList) += "${photo.label}/${photo.name}"
    }

    companion object {
        /** The reason for skipping files that are damaged or not photos. */
        const val UNREADABLE = "files that cannot be read"

        /** The reason for skipping photos whose bytes have changed. */
        const val CHANGED = "photos that have changed or gone since the album was read"

        /** The reason for skipping photos that do not fit into memory. */
        const val TOO_LARGE = "photos that take more memory than there is"

        /** The reason for skipping features that the model does not take. */
        const val UNFIT = "features that are not as many finite numbers as the model takes"

        /** The reason for skipping train examples without a photo, if the model is trained on views. */
        const val NO_VIEWS = "features without a photo, of which the model is trained on views"

        // Number of photos whose values are in memory while they are read or stored.
        private const val AT_ONCE = 64

        private val Example.key: ByteString get() = ByteString.copyFrom(entry.photo)

        private fun List<FloatArray>.joined(): FloatArray {
            val all = FloatArray(Math.toIntExact(sumOf { it.size.toLong() }))
            var at = 0
            for (part in this) {
                part.copyInto(all, at)
                at += part.size
            }
            return all
        }
    }
}
