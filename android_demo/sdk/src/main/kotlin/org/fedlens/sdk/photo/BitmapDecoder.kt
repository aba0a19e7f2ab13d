package org.fedlens.sdk.photo

import android.graphics.Bitmap
import android.graphics.BitmapFactory
import android.graphics.BitmapRegionDecoder
import android.graphics.Rect
import org.fedlens.sdk.PhotoException
import org.fedlens.sdk.PhotoException.Reason
import java.io.IOException

/**
 * Decodes photos as Android does, at full size: to `ARGB_8888`, not premultiplied, as the colour below transparent pixels
 * counts. Larger photos are decoded in bands, so that no more than [bandPixels] of them are in memory, 4 bytes each and
 * outside the heap.
 */
public class BitmapDecoder internal constructor(
    private val bandPixels: Int,
) : PhotoDecoder {
    public constructor() : this(BAND_PIXELS)

    override fun decode(content: ByteArray): PixelSource {
        val plain = PlainPhoto.of(content)
        val bounds = options().apply { inJustDecodeBounds = true }
        BitmapFactory.decodeByteArray(plain, 0, plain.size, bounds)
        val (width, height) = bounds.outWidth to bounds.outHeight
        if (width <= 0 || height <= 0) throw damaged()
        if (width.toLong() * height > Photos.MAX_PIXELS) {
            val message = "a photo of $width x $height pixels; at most ${Photos.MAX_PIXELS} are allowed"
            throw PhotoException(Reason.TOO_LARGE, message)
        }
        if (width.toLong() * height > bandPixels) {
            regions(plain)?.let { return BandedBitmap(it, maxOf(bandPixels, width, height)) }
        }
        return WholeBitmap(BitmapFactory.decodeByteArray(plain, 0, plain.size, options()) ?: throw damaged())
    }

    /** Null: a photo of a format that Android decodes as a whole only. */
    private fun regions(content: ByteArray): BitmapRegionDecoder? =
        try {
            // What stands in its place needs Android 12.
            @Suppress("DEPRECATION")
            BitmapRegionDecoder.newInstance(content, 0, content.size, false)
        } catch (_: IOException) {
            null
        }

    internal companion object {
        /** 64 MiB: a photo of 12 megapixels, as most phones take, is decoded as a whole, which is quickest. */
        private const val BAND_PIXELS = 1 shl 24

        internal fun options(): BitmapFactory.Options =
            BitmapFactory.Options().apply {
                inPreferredConfig = Bitmap.Config.ARGB_8888
                inPremultiplied = false
                inScaled = false
            }

        internal fun damaged() = PhotoException(Reason.DAMAGED, "cannot be decoded")
    }
}

private class WholeBitmap(
    private val bitmap: Bitmap,
) : PixelSource {
    override val width = bitmap.width
    override val height = bitmap.height

    override fun read(
        x: Int,
        y: Int,
        width: Int,
        height: Int,
        into: IntArray,
    ) = bitmap.getPixels(into, 0, width, x, y, width, height)

    override fun close() = bitmap.recycle()
}

/**
 * A photo of which one band is in memory at a time: rows of it where whole rows are read, columns where whole columns are.
 * Every band costs reading the file up to its end, so there are as few as its memory allows.
 */
private class BandedBitmap(
    private val decoder: BitmapRegionDecoder,
    private val bandPixels: Int,
) : PixelSource {
    override val width: Int = decoder.width
    override val height: Int = decoder.height
    private val place = Rect()
    private var band: Bitmap? = null

    override fun read(
        x: Int,
        y: Int,
        width: Int,
        height: Int,
        into: IntArray,
    ) {
        val wanted = Rect(x, y, x + width, y + height)
        // A read may begin in one band and end in the next.
        val isRows = width >= height
        var done = if (isRows) y else x
        val end = if (isRows) y + height else x + width
        while (done < end) {
            val band = bandAt(wanted, isRows, done)
            val until = minOf(end, if (isRows) place.bottom else place.right)
            if (isRows) {
                band.getPixels(into, (done - y) * width, width, x - place.left, done - place.top, width, until - done)
            } else {
                band.getPixels(into, done - x, width, done - place.left, y - place.top, until - done, height)
            }
            done = until
        }
    }

    override fun close() {
        band?.recycle()
        decoder.recycle()
    }

    /** The band of whole rows or columns in which number [line] is. */
    private fun bandAt(
        wanted: Rect,
        isRows: Boolean,
        line: Int,
    ): Bitmap {
        val lines = maxOf(1, bandPixels / (if (isRows) wanted.width() else wanted.height()))
        val first = line / lines * lines
        val next =
            if (isRows) {
                Rect(wanted.left, first, wanted.right, minOf(height, first + lines))
            } else {
                Rect(first, wanted.top, minOf(width, first + lines), wanted.bottom)
            }
        val here = band
        if (here != null && place == next) return here
        here?.recycle()
        band = null
        val decoded = decoder.decodeRegion(next, BitmapDecoder.options()) ?: throw BitmapDecoder.damaged()
        band = decoded
        place.set(next)
        return decoded
    }
}
