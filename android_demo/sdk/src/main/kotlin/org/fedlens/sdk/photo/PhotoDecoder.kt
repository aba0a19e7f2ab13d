package org.fedlens.sdk.photo

/** The platform's decoder of photos. */
public fun interface PhotoDecoder {
    /**
     * Decode a whole photo in the file's orientation.
     *
     * @param content The file's bytes, of a format that [PhotoFile] knows.
     * @throws org.fedlens.sdk.PhotoException The photo cannot be decoded completely, or has more than
     *     [Photos.MAX_PIXELS] pixels.
     */
    public fun decode(content: ByteArray): PixelSource
}
