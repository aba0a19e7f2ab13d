package org.fedlens.app

import android.graphics.Bitmap
import android.graphics.BitmapFactory
import com.google.zxing.BinaryBitmap
import com.google.zxing.DecodeHintType
import com.google.zxing.RGBLuminanceSource
import com.google.zxing.ReaderException
import com.google.zxing.common.HybridBinarizer
import com.google.zxing.qrcode.QRCodeReader
import java.io.File

/** Reading QR codes in pictures. */
internal object QrCode {
    // Enough for the largest code, and little enough for memory.
    private const val LONGEST_EDGE = 2000

    /** The text of the QR code in a picture; null if there is none that can be read. */
    fun read(file: File): String? {
        val bounds = BitmapFactory.Options().apply { inJustDecodeBounds = true }
        BitmapFactory.decodeFile(file.path, bounds)
        val options = BitmapFactory.Options()
        val times = maxOf(bounds.outWidth, bounds.outHeight) / LONGEST_EDGE
        options.inSampleSize = Integer.highestOneBit(times.coerceAtLeast(1)).let { if (it < times) it * 2 else it }
        return BitmapFactory.decodeFile(file.path, options)?.let(::read)
    }

    private fun read(picture: Bitmap): String? {
        val pixels = IntArray(picture.width * picture.height)
        picture.getPixels(pixels, 0, picture.width, 0, 0, picture.width, picture.height)
        val source = RGBLuminanceSource(picture.width, picture.height, pixels)
        return try {
            val hints = mapOf(DecodeHintType.TRY_HARDER to true)
            QRCodeReader().decode(BinaryBitmap(HybridBinarizer(source)), hints).text
        } catch (_: ReaderException) {
            null
        }
    }
}
