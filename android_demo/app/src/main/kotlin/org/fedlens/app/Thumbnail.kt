package org.fedlens.app

import android.content.Context
import android.widget.FrameLayout
import android.widget.ImageView
import kotlinx.coroutines.CoroutineScope
import org.fedlens.sdk.album.AlbumPhoto

/** A photo in a square cell, as high as it is wide, with a mark where it is activated. */
internal class Thumbnail(
    context: Context,
) : FrameLayout(context) {
    private val image = ImageView(context)

    init {
        image.scaleType = ImageView.ScaleType.CENTER_CROP
        image.setBackgroundResource(R.drawable.photo_ground)
        image.clipToOutline = true
        addView(image)
        foreground = context.getDrawable(R.drawable.thumbnail)
    }

    fun show(
        photo: AlbumPhoto,
        scope: CoroutineScope,
    ) = Pictures.show(image, photo, scope, EDGE)

    override fun onMeasure(
        widthMeasureSpec: Int,
        heightMeasureSpec: Int,
    ) = super.onMeasure(
        widthMeasureSpec,
        MeasureSpec.makeMeasureSpec(MeasureSpec.getSize(widthMeasureSpec), MeasureSpec.EXACTLY),
    )

    private companion object {
        const val EDGE = 320
    }
}
