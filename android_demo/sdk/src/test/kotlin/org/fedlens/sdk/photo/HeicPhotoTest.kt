package org.fedlens.sdk.photo

import org.junit.Assert.assertEquals
import org.junit.Assert.assertNull
import org.junit.Ignore
import org.junit.Test
import org.junit.runner.RunWith
import org.robolectric.RobolectricTestRunner
import org.robolectric.annotation.Config
import org.robolectric.annotation.GraphicsMode
import java.io.File
import java.nio.ByteBuffer

/** Android's own decoder of HEIC. */
@RunWith(RobolectricTestRunner::class)
@GraphicsMode(GraphicsMode.Mode.NATIVE)
@Config(sdk = [35])
class HeicPhotoTest {
    @Test
    @Ignore("not run: Robolectric has no decoder of HEIC; on a phone, with a photo of its camera in heic.file")
    fun `a photo of a camera becomes an upright JPEG`() {
        val jpeg = checkNotNull(HeicPhoto.toJpeg(File(System.getProperty("heic.file")).readBytes()))
        val file = PhotoFile.read(ByteBuffer.wrap(jpeg))
        assertEquals(PhotoFormat.JPEG to Orientation.UPRIGHT, file.format to file.orientation)
    }

    @Test
    fun `what cannot be decoded makes no JPEG`() {
        assertNull(HeicPhoto.toJpeg("0000ftypheic and nothing else".toByteArray()))
    }
}
