package org.fedlens.app

import android.content.ContentProvider
import android.content.ContentValues
import android.content.Context
import android.content.Intent
import android.database.Cursor
import android.net.Uri
import android.os.ParcelFileDescriptor
import android.provider.MediaStore
import java.io.File
import java.io.FileNotFoundException

/**
 * A single file in the cache, to which a camera app may write a photo; only the app that is granted access can reach
 * it.
 */
class CaptureProvider : ContentProvider() {
    override fun onCreate(): Boolean = true

    override fun openFile(
        uri: Uri,
        mode: String,
    ): ParcelFileDescriptor {
        val context = context
        if (context == null || uri != ADDRESS) throw FileNotFoundException("$uri is not here")
        // Whoever writes begins anew: a process that ended too early has left a photo.
        val anew = if ('w' in mode) ParcelFileDescriptor.MODE_TRUNCATE else 0
        return ParcelFileDescriptor.open(file(context), ParcelFileDescriptor.parseMode(mode) or anew)
    }

    override fun getType(uri: Uri): String = "image/jpeg"

    override fun query(
        uri: Uri,
        projection: Array<out String>?,
        selection: String?,
        selectionArgs: Array<out String>?,
        sortOrder: String?,
    ): Cursor? = null

    override fun insert(
        uri: Uri,
        values: ContentValues?,
    ): Uri? = null

    override fun delete(
        uri: Uri,
        selection: String?,
        selectionArgs: Array<out String>?,
    ): Int = 0

    override fun update(
        uri: Uri,
        values: ContentValues?,
        selection: String?,
        selectionArgs: Array<out String>?,
    ): Int = 0

    internal companion object {
        val ADDRESS: Uri = Uri.parse("content://org.fedlens.app.capture/photo.jpg")

        /** A request to the camera app for one photo, which lies in [file] then. */
        fun request(): Intent =
            Intent(MediaStore.ACTION_IMAGE_CAPTURE)
                .putExtra(MediaStore.EXTRA_OUTPUT, ADDRESS)
                .addFlags(Intent.FLAG_GRANT_WRITE_URI_PERMISSION or Intent.FLAG_GRANT_READ_URI_PERMISSION)

        /** The file that holds the camera app's photo until it is in the album; for calls off the main thread. */
        fun file(context: Context): File = File(context.cacheDir, "capture.jpg").apply { parentFile?.mkdirs() }
    }
}
