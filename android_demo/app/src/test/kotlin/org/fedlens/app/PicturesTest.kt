package org.fedlens.app

import android.graphics.Bitmap
import android.graphics.drawable.BitmapDrawable
import android.net.Uri
import android.widget.ImageView
import kotlinx.coroutines.launch
import org.fedlens.app.Phone.until
import org.junit.Assert.assertEquals
import org.junit.Test
import org.junit.runner.RunWith
import org.robolectric.RobolectricTestRunner
import org.robolectric.annotation.Config
import org.robolectric.annotation.GraphicsMode
import java.io.File

@RunWith(RobolectricTestRunner::class)
@Config(sdk = [35], application = TestApp::class)
@GraphicsMode(GraphicsMode.Mode.NATIVE)
class PicturesTest {
    private val app get() = Phone.app

    @Test
    fun `a photo keeps the pixels that are shown, and a panorama no more than a screen can draw`() {
        // 2000 x 1500 for a view of 700: 1500 / 700 = 2.1, so every second pixel.
        assertEquals(1000 to 750, shown(2000, 1500, leastEdge = 700))
        // 9000 / 2 is still more than 4096, 9000 / 4 = 2250 is not.
        assertEquals(2250 to 75, shown(9000, 300, leastEdge = 700))
    }

    private fun shown(
        width: Int,
        height: Int,
        leastEdge: Int,
    ): Pair<Int, Int> {
        val file = File.createTempFile("wide", ".png").apply { deleteOnExit() }
        val drawn = Bitmap.createBitmap(width, height, Bitmap.Config.RGB_565)
        file.outputStream().use { drawn.compress(Bitmap.CompressFormat.PNG, 100, it) }
        val view = ImageView(app)
        app.scope.launch {
            app.photos.add(listOf(Uri.fromFile(file)))
            Pictures.show(view, checkNotNull(app.photos.all.value).first(), app.scope, leastEdge)
        }
        until("the picture is there") { (view.drawable as? BitmapDrawable)?.bitmap != null }
        return (view.drawable as BitmapDrawable).bitmap.run { this.width to this.height }
    }
}
