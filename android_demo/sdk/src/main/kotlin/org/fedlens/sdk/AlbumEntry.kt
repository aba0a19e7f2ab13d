package org.fedlens.sdk

/**
 * One photo of an album.
 *
 * @property photo SHA-256 of the file's bytes.
 * @property copy Number of this file among files with the same bytes, from 0; an unsigned 32-bit number.
 */
public class AlbumEntry(
    public val photo: ByteArray,
    public val copy: Int = 0,
) : Comparable<AlbumEntry> {
    /** Order by unsigned digest, then by copy: the order of an album. */
    override fun compareTo(other: AlbumEntry): Int {
        val byPhoto = KeyedHash.compareUnsigned(photo, other.photo)
        return if (byPhoto != 0) byPhoto else Integer.compareUnsigned(copy, other.copy)
    }

    override fun equals(other: Any?): Boolean =
        other is AlbumEntry && photo.contentEquals(other.photo) && copy == other.copy

    override fun hashCode(): Int = 31 * photo.contentHashCode() + copy

    override fun toString(): String = photo.toHex() + "/" + Integer.toUnsignedString(copy)
}
