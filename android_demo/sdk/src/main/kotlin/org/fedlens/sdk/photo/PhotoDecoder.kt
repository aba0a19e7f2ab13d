package org.fedlens.sdk.photo

/** The platform's decoder of photos. */
public fun interface PhotoDecoder {
    /**
     * Decodes a whole photo as it lies in its file, not turned upright.
     *
     * @param content The file's bytes, of a format that [PhotoFile] knows.
     * @throws org.fedlens.sdk.PhotoException It cannot be decoded completely, or has more than [Photos.MAX_PIXELS].
     */
    public fun decode(content: ByteArray): PixelSource
}
