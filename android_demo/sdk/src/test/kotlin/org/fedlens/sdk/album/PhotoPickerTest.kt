package org.fedlens.sdk.album

import android.content.ClipData
import android.content.Intent
import android.net.Uri
import android.os.Build
import android.provider.MediaStore
import org.fedlens.sdk.onAndroid
import org.junit.Assert.assertEquals
import org.junit.Assert.assertFalse
import org.junit.Assert.assertThrows
import org.junit.Assert.assertTrue
import org.junit.Test
import org.junit.runner.RunWith
import org.robolectric.RobolectricTestRunner
import org.robolectric.annotation.Config

/** The contract with the system's picker: what it is asked for, and what its answer means. */
@RunWith(RobolectricTestRunner::class)
@Config(sdk = [35])
class PhotoPickerTest {
    @Test
    fun `Android 13 and newer have a picker of photos, whose limit is kept`() {
        val one = PhotoPicker.intent()
        assertEquals(MediaStore.ACTION_PICK_IMAGES to "image/*", one.action to one.type)
        assertFalse(one.hasExtra(MediaStore.EXTRA_PICK_IMAGES_MAX))
        val some = listOf(5, 100_000).map { PhotoPicker.intent(it).getIntExtra(MediaStore.EXTRA_PICK_IMAGES_MAX, 0) }
        assertEquals(listOf(5, MediaStore.getPickImagesMaxLimit()), some)
    }

    @Test
    fun `older ones pick documents that are photos`() {
        onAndroid(Build.VERSION_CODES.S) {
            val some = PhotoPicker.intent(5)
            assertEquals(Intent.ACTION_OPEN_DOCUMENT to "image/*", some.action to some.type)
            assertEquals(setOf(Intent.CATEGORY_OPENABLE), some.categories)
            assertTrue(some.getBooleanExtra(Intent.EXTRA_ALLOW_MULTIPLE, false))
            assertFalse(PhotoPicker.intent().getBooleanExtra(Intent.EXTRA_ALLOW_MULTIPLE, true))
        }
    }

    @Test
    fun `picked are one photo, several, or none`() {
        val (first, second) = listOf("content://photos/1", "content://photos/2").map(Uri::parse)
        assertEquals(listOf(first), PhotoPicker.picked(Intent().setData(first)))
        val several = ClipData.newRawUri("", first)
        for (uri in listOf(second, first)) several.addItem(ClipData.Item(uri))
        assertEquals(listOf(first, second), PhotoPicker.picked(Intent().setData(first).apply { clipData = several }))
        assertEquals(emptyList<Uri>(), PhotoPicker.picked(null) + PhotoPicker.picked(Intent()))
        assertThrows(IllegalArgumentException::class.java) { PhotoPicker.intent(0) }
    }
}
