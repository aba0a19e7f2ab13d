package org.fedlens.sdk.album

import java.io.File

/**
 * A photo of a [PhotoAlbum] at the time of the query.
 *
 * @property id Id, which grows with every photo and is never reused.
 * @property sha256 SHA-256 of the file's bytes, 32 bytes.
 * @property file The photo's file.
 * @property name Original name of the file.
 * @property label Name of the class chosen by the owner; null: none yet.
 * @property suggested Name of the class suggested by a model; null: none yet.
 * @property probability Probability of that class, in 0..1; 0 without a suggestion.
 * @property addedAtMs Time of adding, in milliseconds since 1970.
 * @property isTest True for a test photo, which is never trained on.
 */
public class AlbumPhoto internal constructor(
    public val id: Long,
    public val sha256: ByteArray,
    public val file: File,
    public val name: String,
    public val label: String?,
    public val suggested: String?,
    public val probability: Double,
    public val addedAtMs: Long,
    public val isTest: Boolean,
)
