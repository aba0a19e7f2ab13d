package org.fedlens.app

import android.app.Activity
import android.view.View
import android.view.ViewGroup
import android.widget.BaseAdapter
import android.widget.LinearLayout
import android.widget.TextView
import kotlinx.coroutines.CoroutineScope
import org.fedlens.sdk.album.AlbumPhoto

/** An album as rows of a list: for each class its name and count, then its photos, [columns] in a row. */
internal class AlbumRows(
    private val activity: Activity,
    private val settings: Settings,
    private val columns: Int,
    private val open: (AlbumPhoto) -> Unit,
) : BaseAdapter() {
    private sealed interface Row {
        class Heading(
            val name: String,
            val count: Int,
        ) : Row

        class Line(
            val photos: List<AlbumPhoto>,
        ) : Row
    }

    private var rows: List<Row> = emptyList()

    /** The scope in which photos are read; null while the list is not visible. */
    var scope: CoroutineScope? = null

    /**
     * @param photos Newest first.
     * @param classes In display order.
     */
    fun show(
        photos: List<AlbumPhoto>,
        classes: List<String>,
    ) {
        val byLabel = photos.groupBy { it.label }
        val labels = byLabel.keys.filterNotNull()
        val order = classes.filter { it in byLabel } + (labels - classes.toSet()).sorted()
        rows =
            buildList {
                byLabel[null]?.let { group(activity.getString(R.string.without_class), it) }
                order.forEach { group(settings.shown(it), byLabel.getValue(it)) }
            }
        notifyDataSetChanged()
    }

    private fun MutableList<Row>.group(
        name: String,
        photos: List<AlbumPhoto>,
    ) {
        add(Row.Heading(name, photos.size))
        photos.chunked(columns).forEach { add(Row.Line(it)) }
    }

    override fun getCount(): Int = rows.size

    override fun getItem(position: Int): Any = rows[position]

    override fun getItemId(position: Int): Long = position.toLong()

    override fun getViewTypeCount(): Int = 2

    override fun getItemViewType(position: Int): Int = if (rows[position] is Row.Heading) 0 else 1

    override fun areAllItemsEnabled(): Boolean = false

    // Each photo handles its own clicks, not the row.
    override fun isEnabled(position: Int): Boolean = false

    override fun getView(
        position: Int,
        convertView: View?,
        parent: ViewGroup,
    ): View =
        when (val row = rows[position]) {
            is Row.Heading -> heading(row, convertView, parent)
            is Row.Line -> line(row, convertView, parent)
        }

    private fun heading(
        row: Row.Heading,
        before: View?,
        parent: ViewGroup,
    ): View {
        val view = before ?: activity.layoutInflater.inflate(R.layout.album_heading, parent, false)
        view.findViewById<TextView>(R.id.heading_name).text = row.name
        view.findViewById<TextView>(R.id.heading_count).text =
            activity.resources.getQuantityString(R.plurals.photos, row.count, row.count)
        return view
    }

    private fun line(
        row: Row.Line,
        before: View?,
        parent: ViewGroup,
    ): View {
        val view = (before ?: emptyLine(parent)) as ViewGroup
        for (column in 0 until columns) {
            val cell = view.getChildAt(column) as ViewGroup
            val photo = row.photos.getOrNull(column)
            cell.visibility = if (photo == null) View.INVISIBLE else View.VISIBLE
            if (photo != null) fill(cell, photo)
        }
        return view
    }

    private fun fill(
        cell: ViewGroup,
        photo: AlbumPhoto,
    ) {
        scope?.let { (cell as Thumbnail).show(photo, it) }
        cell.contentDescription =
            photo.label?.let { activity.getString(R.string.photo_of, settings.shown(it)) }
                ?: activity.getString(R.string.photo_without_class)
        cell.setOnClickListener { open(photo) }
    }

    private fun emptyLine(parent: ViewGroup): View {
        val line = activity.layoutInflater.inflate(R.layout.album_row, parent, false) as LinearLayout
        val gap = activity.resources.getDimensionPixelSize(R.dimen.gap_thumbnail)
        repeat(columns) { column ->
            val cell = Thumbnail(activity)
            val spot = LinearLayout.LayoutParams(0, LinearLayout.LayoutParams.WRAP_CONTENT, 1f)
            spot.marginStart = if (column == 0) 0 else gap
            line.addView(cell, spot)
        }
        return line
    }
}
