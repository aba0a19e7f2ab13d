package org.fedlens.sdk.photo

/**
 * The orientation of a photo in its file, EXIF tag 274.
 *
 * @property tag Value of the tag, 1 to 8.
 * @property isTransposed True if rows of the upright photo are columns of the file.
 * @property flipsAlong True if rows of the upright photo run backwards in the file.
 * @property flipsAcross True if the first row of the upright photo is the last in the file.
 */
public enum class Orientation(
    public val tag: Int,
    internal val isTransposed: Boolean,
    internal val flipsAlong: Boolean,
    internal val flipsAcross: Boolean,
) {
    /** Upright in the file. */
    UPRIGHT(1, false, false, false),

    /** Mirrored left to right. */
    MIRRORED(2, false, true, false),

    /** Rotated by 180 degrees. */
    UPSIDE_DOWN(3, false, true, true),

    /** Mirrored top to bottom. */
    MIRRORED_UPSIDE_DOWN(4, false, false, true),

    /** Mirrored at the diagonal from the top left. */
    TRANSPOSED(5, true, false, false),

    /** Upright after a quarter turn clockwise. */
    TURNED_LEFT(6, true, true, false),

    /** Mirrored at the diagonal from the top right. */
    TRANSVERSED(7, true, true, true),

    /** Upright after a quarter turn anticlockwise. */
    TURNED_RIGHT(8, true, false, true),
    ;

    public companion object {
        /** The orientation with this tag; [UPRIGHT] for any other value. */
        public fun of(tag: Int): Orientation = entries.firstOrNull { it.tag == tag } ?: UPRIGHT
    }
}
