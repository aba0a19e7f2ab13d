package org.fedlens.app

import android.app.Activity
import android.view.View
import android.view.ViewGroup
import android.widget.BaseAdapter
import android.widget.CheckBox
import kotlinx.coroutines.CoroutineScope
import org.fedlens.sdk.album.AlbumPhoto

/** Photos as cells of a grid, each of which can be chosen. */
internal class LabelCells(
    private val activity: Activity,
    private val toggle: (AlbumPhoto) -> Unit,
) : BaseAdapter() {
    private var photos: List<AlbumPhoto> = emptyList()
    private var chosen: Set<Long> = emptySet()

    /** The scope in which photos are read; null while the grid is not visible. */
    var scope: CoroutineScope? = null

    fun show(
        photos: List<AlbumPhoto>,
        chosen: Set<Long>,
    ) {
        this.photos = photos
        this.chosen = chosen
        notifyDataSetChanged()
    }

    override fun getCount(): Int = photos.size

    override fun getItem(position: Int): Any = photos[position]

    override fun getItemId(position: Int): Long = photos[position].id

    override fun getView(
        position: Int,
        convertView: View?,
        parent: ViewGroup,
    ): View {
        val cell = convertView as? Thumbnail ?: Thumbnail(activity)
        val photo = photos[position]
        scope?.let { cell.show(photo, it) }
        cell.isActivated = photo.id in chosen
        cell.contentDescription = activity.getString(R.string.photo_number, position + 1, photos.size)
        cell.accessibilityDelegate = Choice(cell.isActivated, CheckBox::class.java)
        cell.setOnClickListener { toggle(photo) }
        return cell
    }
}
