package org.fedlens.sdk.album

import org.fedlens.sdk.AlbumEntry
import java.io.File

/**
 * One labelled photo.
 *
 * @property entry Digest of the file's bytes and copy.
 * @property label Name of the class; one that the bundle does not know is left out and told.
 * @property file Where the bytes are; they are checked against the digest when they are read.
 * @property isTest Evaluated on, never trained on.
 */
public class Photo(
    public val entry: AlbumEntry,
    public val label: String,
    public val file: File,
    public val isTest: Boolean,
)

/**
 * The album as it was at one moment.
 *
 * @property photos In any order; each entry once.
 * @property skipped Names of files that are no usable photos, by reason.
 */
public class AlbumSnapshot(
    public val photos: List<Photo>,
    public val skipped: Map<String, List<String>> = emptyMap(),
)

/** Where a client's photos come from. It may change between rounds; each round works on a snapshot. */
public interface Album {
    /** The labelled photos now; called in a thread of the client's. */
    public fun photos(): AlbumSnapshot
}
