package org.fedlens.sdk.album

import android.content.Intent
import android.net.Uri
import android.os.Build
import android.provider.MediaStore
import org.fedlens.sdk.NewerAndroid

/**
 * The system's photo picker, for `Activity.startActivityForResult`; it needs no permission. On Android 13 and newer it
 * is the one for photos, on older ones that for documents.
 */
public object PhotoPicker {
    /**
     * An intent to pick photos.
     *
     * @param most Most photos to pick, at least 1. The picker for documents has no limit.
     */
    @JvmStatic
    @JvmOverloads
    public fun intent(most: Int = 1): Intent {
        require(most >= 1) { "most: found $most, must be at least 1" }
        if (Build.VERSION.SDK_INT >= Build.VERSION_CODES.TIRAMISU) return ofPhotos(most)
        return Intent(Intent.ACTION_OPEN_DOCUMENT)
            .addCategory(Intent.CATEGORY_OPENABLE)
            .setType(PHOTOS)
            .putExtra(Intent.EXTRA_ALLOW_MULTIPLE, most > 1)
    }

    /** The picked photos, in order, each once; none if the picker was left. [data] is that of `onActivityResult`. */
    @JvmStatic
    public fun picked(data: Intent?): List<Uri> {
        val several = data?.clipData ?: return listOfNotNull(data?.data)
        return (0 until several.itemCount).mapNotNull { several.getItemAt(it).uri }.distinct()
    }

    @NewerAndroid(Build.VERSION_CODES.TIRAMISU)
    private fun ofPhotos(most: Int): Intent {
        val intent = Intent(MediaStore.ACTION_PICK_IMAGES).setType(PHOTOS)
        val limited = minOf(most, MediaStore.getPickImagesMaxLimit())
        // The picker refuses a limit of 1, which it has without any.
        return if (limited > 1) intent.putExtra(MediaStore.EXTRA_PICK_IMAGES_MAX, limited) else intent
    }

    private const val PHOTOS = "image/*"
}
