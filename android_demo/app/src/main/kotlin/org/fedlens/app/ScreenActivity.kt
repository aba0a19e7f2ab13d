package org.fedlens.app

import android.app.Activity
import android.content.Intent
import android.content.res.ColorStateList
import android.os.Build
import android.os.Bundle
import android.util.TypedValue
import android.view.View
import android.view.ViewGroup
import android.view.WindowInsets
import android.widget.ImageButton
import android.widget.ImageView
import android.widget.LinearLayout
import android.widget.TextView
import kotlinx.coroutines.CoroutineScope
import kotlinx.coroutines.Job
import kotlinx.coroutines.cancel
import kotlinx.coroutines.flow.Flow
import kotlinx.coroutines.launch

/**
 * A screen: bar, content, and on the four main ones the bar at the bottom. Before consent is given only the consent
 * screen opens, and before the phone has joined nothing beyond that.
 */
abstract class ScreenActivity : Activity() {
    internal val app: FedLensApp get() = application as FedLensApp

    /** Lives while the screen is seen. */
    internal var seen: CoroutineScope? = null
        private set

    /** Which of the four; null: none of them. */
    internal open val tab: Tab? get() = null

    /** Whether the screen is for those who have consented and joined. */
    internal open val needsMembership: Boolean get() = true

    /** Whether an arrow leads back to where one came from. */
    internal open val hasBack: Boolean get() = tab == null && needsMembership

    internal enum class Tab(
        val screen: Class<out Activity>,
        val icon: Int,
        val label: Int,
    ) {
        COLLECT(CollectActivity::class.java, R.drawable.ic_camera, R.string.collect),
        ALBUM(AlbumActivity::class.java, R.drawable.ic_album, R.string.album),
        LEARNING(LearningActivity::class.java, R.drawable.ic_learning, R.string.learning),
        SENT(SentActivity::class.java, R.drawable.ic_sent, R.string.sent_short),
    }

    override fun onCreate(savedInstanceState: Bundle?) {
        super.onCreate(savedInstanceState)
        if (needsMembership && sendElsewhere()) return
        make(savedInstanceState)
    }

    /** Puts the content in; not called where another screen comes first. */
    internal abstract fun make(saved: Bundle?)

    /** Follows what changes; called whenever the screen comes into sight. */
    internal open fun follow() = Unit

    override fun onStart() {
        super.onStart()
        if (isFinishing || findViewById<View>(R.id.frame) == null) return
        // Consent may have been withdrawn on another screen in the meantime.
        if (needsMembership && sendElsewhere()) return
        seen = CoroutineScope(Job() + app.main)
        app.screensSeen++
        whileSeen(app.photos.problem, ::showProblem)
        // Whoever has left the screen that erases, while the server was being told, is sent on from any other.
        if (needsMembership) whileSeen(app.erasing.state) { if (it is Erasing.State.Done) sendElsewhere() }
        follow()
    }

    override fun onStop() {
        if (seen != null) app.screensSeen--
        seen?.cancel()
        seen = null
        super.onStop()
    }

    /** Calls [show] now and with every change, while the screen is seen. */
    internal fun <T> whileSeen(
        flow: Flow<T>,
        show: (T) -> Unit,
    ) {
        seen?.launch { flow.collect { show(it) } }
    }

    internal fun fill(
        content: Int,
        title: Int,
    ) {
        setContentView(R.layout.frame)
        layoutInflater.inflate(content, findViewById<ViewGroup>(R.id.content), true)
        findViewById<TextView>(R.id.title).setText(title)
        val back = findViewById<ImageButton>(R.id.back)
        back.visibility = if (hasBack) View.VISIBLE else View.GONE
        back.setOnClickListener { finish() }
        val settings = findViewById<ImageButton>(R.id.open_settings)
        settings.visibility = if (tab == null) View.GONE else View.VISIBLE
        settings.setOnClickListener { startActivity(Intent(this, SettingsActivity::class.java)) }
        findViewById<LinearLayout>(R.id.tabs).apply {
            visibility = if (tab == null) View.GONE else View.VISIBLE
            if (tab != null) Tab.entries.forEach { addView(tabView(it, this)) }
        }
        findViewById<View>(R.id.frame).setOnApplyWindowInsetsListener { frame, insets -> fit(frame, insets) }
    }

    private fun showProblem(problem: String?) {
        findViewById<TextView>(R.id.album_problem).apply {
            text = getString(R.string.album_problem, problem.orEmpty())
            visibility = if (problem == null) View.GONE else View.VISIBLE
        }
    }

    private fun tabView(
        other: Tab,
        bar: ViewGroup,
    ): View {
        val isHere = other == tab
        val view = layoutInflater.inflate(R.layout.tab, bar, false)
        val ink = getColor(if (isHere) R.color.on_tonal else R.color.text_soft)
        view.findViewById<ImageView>(R.id.tab_icon).apply {
            setImageResource(other.icon)
            imageTintList = ColorStateList.valueOf(ink)
            if (isHere) setBackgroundResource(R.drawable.tab_chosen)
        }
        view.findViewById<TextView>(R.id.tab_label).apply {
            setText(other.label)
            // The one text that does not grow without bound: four of them stand side by side.
            setTextSize(TypedValue.COMPLEX_UNIT_PX, minOf(textSize, resources.getDimension(R.dimen.tab_text_most)))
            setTextColor(getColor(if (isHere) R.color.text else R.color.text_soft))
        }
        view.contentDescription = getString(other.label)
        view.isSelected = isHere
        view.setOnClickListener {
            if (!isHere) turnTo(other)
        }
        return view
    }

    /** Going back leads from each of the others to the first. */
    private fun turnTo(other: Tab) {
        startActivity(Intent(this, other.screen).addFlags(Intent.FLAG_ACTIVITY_REORDER_TO_FRONT))
        if (tab != Tab.COLLECT) finish()
    }

    private fun sendElsewhere(): Boolean {
        val first =
            when {
                !app.settings.hasConsent -> ConsentActivity::class.java
                !app.settings.isEnrolled -> EnrolActivity::class.java
                else -> return false
            }
        startActivity(Intent(this, first))
        finish()
        return true
    }

    /** Keeps everything off the system's bars and the keyboard; the bottom bar's ground reaches to the edge. */
    private fun fit(
        frame: View,
        insets: WindowInsets,
    ): WindowInsets {
        val edges = if (Build.VERSION.SDK_INT >= Build.VERSION_CODES.R) edges(insets) else olderEdges(insets)
        val bar = findViewById<View>(R.id.tabs)
        val isBarThere = bar.visibility == View.VISIBLE
        frame.setPadding(edges[0], edges[1], edges[2], if (isBarThere) 0 else edges[EDGE_BELOW])
        bar.setPadding(0, 0, 0, edges[EDGE_BELOW])
        return insets
    }

    @NewerAndroid(Build.VERSION_CODES.R)
    private fun edges(insets: WindowInsets): IntArray {
        val kinds = WindowInsets.Type.systemBars() or WindowInsets.Type.displayCutout() or WindowInsets.Type.ime()
        return insets.getInsets(kinds).run { intArrayOf(left, top, right, bottom) }
    }

    @Suppress("DEPRECATION")
    private fun olderEdges(insets: WindowInsets): IntArray =
        insets.run {
            intArrayOf(systemWindowInsetLeft, systemWindowInsetTop, systemWindowInsetRight, systemWindowInsetBottom)
        }

    private companion object {
        const val EDGE_BELOW = 3
    }
}
