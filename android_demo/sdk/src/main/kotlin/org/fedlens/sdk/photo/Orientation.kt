package org.fedlens.sdk.photo

/**
 * How a photo lies in its file: the EXIF tag 274.
 *
 * @property tag Its value, 1 to 8.
 * @property isTransposed Rows of the upright photo are columns of the file.
 * @property flipsAlong A row of the upright photo begins where it ends in the file.
 * @property flipsAcross The first row of the upright photo is the last one in the file.
 */
public enum class Orientation(
    public val tag: Int,
    internal val isTransposed: Boolean,
    internal val flipsAlong: Boolean,
    internal val flipsAcross: Boolean,
) {
    /** As it should be. */
    UPRIGHT(1, false, false, false),

    /** To be mirrored, left to right. */
    MIRRORED(2, false, true, false),

    /** To be turned by half a turn. */
    UPSIDE_DOWN(3, false, true, true),

    /** To be mirrored, top to bottom. */
    MIRRORED_UPSIDE_DOWN(4, false, false, true),

    /** To be mirrored at the diagonal from the top left. */
    TRANSPOSED(5, true, false, false),

    /** To be turned clockwise by a quarter. */
    TURNED_LEFT(6, true, true, false),

    /** To be mirrored at the diagonal from the top right. */
    TRANSVERSED(7, true, true, true),

    /** To be turned anticlockwise by a quarter. */
    TURNED_RIGHT(8, true, false, true),
    ;

    public companion object {
        /** The orientation with this tag; of any other value, [UPRIGHT]. */
        public fun of(tag: Int): Orientation = entries.firstOrNull { it.tag == tag } ?: UPRIGHT
    }
}
