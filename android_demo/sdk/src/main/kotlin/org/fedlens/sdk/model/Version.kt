package org.fedlens.sdk.model

import com.google.protobuf.ByteString
import org.fedlens.proto.v1.CurrentModel
import org.fedlens.sdk.blob.Tensor

/** Place of a version among those of its task. */
internal enum class Place { NEWER, IN_USE, PREVIOUS }

/**
 * A model that can predict: what the server announced, with the client state of that time.
 *
 * @property id Id, which grows with every new version.
 * @property announced The model as announced; of equal announcements the last.
 * @property isHeld True if it is in use because the app chose it although there was a newer one.
 * @property tested Its last test; null: none yet.
 * @property needs Digests of everything in the cache that it is made of; empty until all of it was there.
 * @property state Client state by name; null if there is none.
 */
internal class Version(
    val id: Long,
    val announced: CurrentModel,
    val place: Place,
    val knownSinceMs: Long,
    val inUseSinceMs: Long?,
    val isHeld: Boolean,
    val tested: Tested?,
    val needs: Set<ByteString>,
    val state: (String) -> Map<String, Tensor>?,
)

/** The versions of one task that this phone keeps. */
internal class Kept(
    private val versions: List<Version>,
) {
    val inUse: Version? get() = at(Place.IN_USE)
    val newer: Version? get() = at(Place.NEWER)
    val previous: Version? get() = at(Place.PREVIOUS)

    /** The version that the last announcement makes with the present client state. */
    val newest: Version get() = newer ?: checkNotNull(inUse) { "no model was announced" }

    private fun at(place: Place) = versions.find { it.place == place }
}

/**
 * A test of a version.
 *
 * @property photos Digest of the test photos, in their order, with their classes.
 * @property hits For each photo, true if it was classified correctly.
 */
internal class Tested(
    val photos: ByteString,
    val hits: BooleanArray,
) {
    /** Number of photos classified correctly. */
    val correct: Int get() = hits.count { it }
}
