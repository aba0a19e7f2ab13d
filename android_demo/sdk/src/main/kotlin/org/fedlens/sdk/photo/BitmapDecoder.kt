package org.fedlens.sdk.photo

import android.graphics.Bitmap
import android.graphics.BitmapFactory
import android.graphics.BitmapRegionDecoder
import android.graphics.Rect
import org.fedlens.sdk.PhotoException
import org.fedlens.sdk.PhotoException.Reason
import java.io.IOException

/**
 * Android's decoder of photos, at full size: to `ARGB_8888`, not premultiplied, because the colour of transparent
 * pixels counts. Large photos are decoded in bands of at most 64 MiB, outside the heap; large photos of a format that
 * Android cannot decode in regions, such as BMP, are refused.
 */
public class BitmapDecoder internal constructor(
    private val regionsOf: (ByteArray) -> BitmapRegionDecoder?,
) : PhotoDecoder {
    public constructor() : this(::regions)

    override fun decode(content: ByteArray): PixelSource {
        val bounds = options().apply { inJustDecodeBounds = true }
        BitmapFactory.decodeByteArray(content, 0, content.size, bounds)
        val (width, height) = bounds.outWidth to bounds.outHeight
        // Before it is copied.
        if (width.toLong() * height > Photos.MAX_PIXELS) {
            throw tooLarge(width, height, Photos.MAX_PIXELS)
        }
        val plain = PlainPhoto.of(content)
        if (width <= 0 || height <= 0) throw damaged()
        if (width.toLong() * height > BAND_PIXELS) {
            return banded(regionsOf(plain) ?: throw tooLarge(width, height, BAND_PIXELS.toLong()))
        }
        return WholeBitmap(BitmapFactory.decodeByteArray(plain, 0, plain.size, options()) ?: throw damaged())
    }

    private fun banded(regions: BitmapRegionDecoder): PixelSource {
        val decode = { x: Int, y: Int, width: Int, height: Int ->
            WholeBitmap(regions.decodeRegion(Rect(x, y, x + width, y + height), options()) ?: throw damaged())
        }
        return BandedPhoto(regions.width, regions.height, BAND_PIXELS, decode, regions::recycle)
    }

    private companion object {
        /** 64 MiB: a photo of 12 megapixels, as most phones take, is decoded as a whole, which is fastest. */
        const val BAND_PIXELS = 1 shl 24

        /** A decoder of regions; null for a format that Android decodes only as a whole. */
        fun regions(content: ByteArray): BitmapRegionDecoder? =
            try {
                // The method that replaces it needs Android 12.
                @Suppress("DEPRECATION")
                BitmapRegionDecoder.newInstance(content, 0, content.size, false)
            } catch (_: IOException) {
                null
            }

        fun options(): BitmapFactory.Options =
            BitmapFactory.Options().apply {
                inPreferredConfig = Bitmap.Config.ARGB_8888
                inPremultiplied = false
                inScaled = false
            }

        fun damaged() = PhotoException(Reason.DAMAGED, "cannot be decoded")

        fun tooLarge(
            width: Int,
            height: Int,
            most: Long,
        ) = PhotoException(
            Reason.TOO_LARGE,
            "a photo of $width x $height pixels; at most $most are allowed in this format",
        )
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
