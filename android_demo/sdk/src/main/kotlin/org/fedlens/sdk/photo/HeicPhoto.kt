package org.fedlens.sdk.photo

import android.graphics.Bitmap
import android.graphics.ColorSpace
import android.graphics.ImageDecoder
import org.fedlens.sdk.NewerAndroid
import java.io.ByteArrayOutputStream
import java.io.IOException
import java.nio.ByteBuffer

/** HEIC photos, as many phones take them, by Android's own decoder, which Android has since 9. */
@NewerAndroid(HeicPhoto.LEAST_ANDROID)
internal object HeicPhoto {
    const val LEAST_ANDROID = 28

    // So that the pixels take at most 64 MiB; a model sees far fewer.
    private const val MOST_PIXELS = 1L shl 24
    private const val QUALITY = 95

    /** The photo as JPEG in sRGB, upright and without what the file says beside it; null if it cannot be decoded. */
    fun toJpeg(content: ByteArray): ByteArray? {
        val bitmap =
            try {
                ImageDecoder.decodeBitmap(ImageDecoder.createSource(ByteBuffer.wrap(content))) { decoder, info, _ ->
                    decoder.allocator = ImageDecoder.ALLOCATOR_SOFTWARE
                    decoder.setTargetColorSpace(ColorSpace.get(ColorSpace.Named.SRGB))
                    val pixels = info.size.width.toLong() * info.size.height
                    var sample = 1
                    while (pixels / (sample * sample) > MOST_PIXELS) sample *= 2
                    decoder.setTargetSampleSize(sample)
                }
            } catch (_: IOException) {
                return null
            }
        try {
            val jpeg = ByteArrayOutputStream()
            bitmap.compress(Bitmap.CompressFormat.JPEG, QUALITY, jpeg)
            return jpeg.toByteArray()
        } finally {
            bitmap.recycle()
        }
    }
}
