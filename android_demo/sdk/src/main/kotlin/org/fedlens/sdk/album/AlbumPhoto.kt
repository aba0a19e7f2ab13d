package org.fedlens.sdk.album

import java.io.File

/**
 * A photo of a [PhotoAlbum] as it was when it was asked for.
 *
 * @property id Grows with every photo; never used again.
 * @property sha256 Of the file's bytes, 32 bytes.
 * @property file Where the bytes are.
 * @property name What the file was called where it came from.
 * @property label Name of the class that its owner gave it; null: none yet.
 * @property suggested Name of the class that a model would give it; null: none was asked.
 * @property probability Of that class, in 0..1; 0 without one.
 * @property addedAtMs Milliseconds since 1970.
 * @property isTest Kept aside for evaluation, never trained on.
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
