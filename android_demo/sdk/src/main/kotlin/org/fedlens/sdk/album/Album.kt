package org.fedlens.sdk.album

import org.fedlens.sdk.AlbumEntry
import java.io.File

/**
 * One labelled photo.
 *
 * @property entry Digest of the file's bytes, and copy number.
 * @property label Name of the class; photos of a class that the bundle lacks are skipped and reported.
 * @property file The file; its bytes are checked against the digest when they are read.
 * @property isTest True for a test photo, which is never trained on.
 */
public class Photo(
    public val entry: AlbumEntry,
    public val label: String,
    public val file: File,
    public val isTest: Boolean,
)

/**
 * A snapshot of an album.
 *
 * @property photos The labelled photos in any order, each entry once.
 * @property skipped Names of files that cannot be used as photos, by reason.
 */
public class AlbumSnapshot(
    public val photos: List<Photo>,
    public val skipped: Map<String, List<String>> = emptyMap(),
)

/** The source of a client's photos. It may change between rounds; each round works on a snapshot. */
public interface Album {
    /** The current labelled photos; called on one of the client's threads. */
    public fun photos(): AlbumSnapshot
}
