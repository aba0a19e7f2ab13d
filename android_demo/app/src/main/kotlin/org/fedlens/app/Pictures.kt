package org.fedlens.app

import android.graphics.Bitmap
import android.graphics.BitmapFactory
import android.graphics.Matrix
import android.util.LruCache
import android.widget.ImageView
import kotlinx.coroutines.CoroutineScope
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.Job
import kotlinx.coroutines.launch
import kotlinx.coroutines.withContext
import org.fedlens.sdk.PhotoException
import org.fedlens.sdk.album.AlbumPhoto
import org.fedlens.sdk.photo.Orientation
import org.fedlens.sdk.photo.PhotoFile
import java.io.File
import java.io.IOException
import java.nio.ByteBuffer

/** Photos as they are shown: upright, and no larger than they need be. Used in the main thread. */
internal object Pictures {
    private const val MOST_KIB = 24 shl 10
    private val cache =
        object : LruCache<String, Bitmap>(MOST_KIB) {
            override fun sizeOf(
                key: String,
                value: Bitmap,
            ) = value.byteCount shr 10
        }

    /** Shows a photo in a view once it has been read, unless the view is to show another one by then. */
    fun show(
        view: ImageView,
        photo: AlbumPhoto,
        scope: CoroutineScope,
        leastEdge: Int,
    ) {
        val key = "${photo.file.path} $leastEdge"
        val before = view.getTag(R.id.photos) as? Job
        // Reading ends with the screen's being seen, and has to begin anew when the screen comes back.
        if (view.getTag(R.id.photo) == key && before?.isCancelled != true) return
        before?.cancel()
        view.setTag(R.id.photo, key)
        view.setTag(R.id.photos, null)
        val known = cache[key]
        view.setImageBitmap(known)
        if (known != null) return
        val job =
            scope.launch {
                val bitmap = withContext(Dispatchers.IO) { read(photo.file, leastEdge) } ?: return@launch
                cache.put(key, bitmap)
                if (view.getTag(R.id.photo) == key) view.setImageBitmap(bitmap)
            }
        view.setTag(R.id.photos, job)
    }

    private fun read(
        file: File,
        leastEdge: Int,
    ): Bitmap? =
        try {
            val content = file.readBytes()
            val bounds = BitmapFactory.Options().apply { inJustDecodeBounds = true }
            BitmapFactory.decodeByteArray(content, 0, content.size, bounds)
            val options = BitmapFactory.Options()
            val shorter = minOf(bounds.outWidth, bounds.outHeight)
            options.inSampleSize = Integer.highestOneBit((shorter / leastEdge).coerceAtLeast(1))
            val lying = BitmapFactory.decodeByteArray(content, 0, content.size, options)
            lying?.let { upright(it, PhotoFile.read(ByteBuffer.wrap(content)).orientation) }
        } catch (_: IOException) {
            null
        } catch (_: PhotoException) {
            null
        }

    private fun upright(
        lying: Bitmap,
        orientation: Orientation,
    ): Bitmap {
        val turn = Matrix()
        if (orientation in MIRRORED) turn.postScale(-1f, 1f)
        turn.postRotate(DEGREES[orientation] ?: 0f)
        return if (turn.isIdentity) lying else Bitmap.createBitmap(lying, 0, 0, lying.width, lying.height, turn, true)
    }

    private val MIRRORED =
        setOf(
            Orientation.MIRRORED,
            Orientation.MIRRORED_UPSIDE_DOWN,
            Orientation.TRANSPOSED,
            Orientation.TRANSVERSED,
        )

    // Clockwise, after mirroring.
    private val DEGREES =
        mapOf(
            Orientation.UPSIDE_DOWN to 180f,
            Orientation.MIRRORED_UPSIDE_DOWN to 180f,
            Orientation.TRANSPOSED to 270f,
            Orientation.TURNED_LEFT to 90f,
            Orientation.TRANSVERSED to 90f,
            Orientation.TURNED_RIGHT to 270f,
        )
}
