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
import java.io.RandomAccessFile
import java.nio.channels.FileChannel

/** Bitmaps of photos for display: upright, and no larger than needed. Main thread only. */
internal object Pictures {
    private const val MOST_KIB = 24 shl 10

    // Android refuses to draw bitmaps of more than 100 MB; no screen has more pixels than this.
    private const val LONGEST_EDGE = 4096

    // Limited: decoding all photos of a screen at once would need too much memory.
    private val reading = Dispatchers.IO.limitedParallelism(2)
    private val cache =
        object : LruCache<String, Bitmap>(MOST_KIB) {
            override fun sizeOf(
                key: String,
                value: Bitmap,
            ) = value.byteCount shr 10
        }

    /** Show a photo in a view once it has been read, unless the view is to show another photo by then. */
    fun show(
        view: ImageView,
        photo: AlbumPhoto,
        scope: CoroutineScope,
        leastEdge: Int,
    ) {
        val key = "${photo.file.path} $leastEdge"
        val before = view.getTag(R.id.photos) as? Job
        // Reading is cancelled when the screen is hidden, and must restart when it comes back.
        if (view.getTag(R.id.photo) == key && before?.isCancelled != true) return
        before?.cancel()
        view.setTag(R.id.photo, key)
        view.setTag(R.id.photos, null)
        val known = cache[key]
        view.setImageBitmap(known)
        if (known != null) return
        val job =
            scope.launch {
                val bitmap = withContext(reading) { read(photo.file, leastEdge) } ?: return@launch
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
            val bounds = BitmapFactory.Options().apply { inJustDecodeBounds = true }
            BitmapFactory.decodeFile(file.path, bounds)
            val options = BitmapFactory.Options()
            options.inSampleSize = sampleSize(bounds.outWidth, bounds.outHeight, leastEdge)
            BitmapFactory.decodeFile(file.path, options)?.let { upright(it, orientation(file)) }
        } catch (_: IOException) {
            null
        } catch (_: PhotoException) {
            null
        }

    // The divisor of both sides: the shorter one keeps at least `leastEdge` pixels, unless the longer one is too long.
    private fun sampleSize(
        width: Int,
        height: Int,
        leastEdge: Int,
    ): Int {
        var size = Integer.highestOneBit((minOf(width, height) / leastEdge).coerceAtLeast(1))
        while (maxOf(width, height) / size > LONGEST_EDGE) size *= 2
        return size
    }

    private fun orientation(file: File): Orientation =
        RandomAccessFile(file, "r").use {
            PhotoFile.read(it.channel.map(FileChannel.MapMode.READ_ONLY, 0, it.length())).orientation
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
