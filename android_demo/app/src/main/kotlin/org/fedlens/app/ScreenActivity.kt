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
import java.text.NumberFormat

/**
 * A screen: a top bar, its content, and tabs at the bottom of the four main screens. Until the phone has
 * joined, only the screen for joining opens; after consent was withdrawn, only the consent screen.
 */
abstract class ScreenActivity : Activity() {
    internal val app: FedLensApp get() = application as FedLensApp

    /** A scope that lasts while the screen is visible; null while it is not. */
    internal var seen: CoroutineScope? = null
        private set

    /** The tab of a main screen; null for other screens. */
    internal open val tab: Tab? get() = null

    /** True if the screen requires consent and enrolment. */
    internal open val needsMembership: Boolean get() = true

    /** True if the top bar has a back arrow. */
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

    /** Build the content; not called if another screen must come first. */
    internal abstract fun make(saved: Bundle?)

    /** Observe state; called whenever the screen becomes visible. */
    internal open fun follow() = Unit

    override fun onStart() {
        super.onStart()
        if (isFinishing || findViewById<View>(R.id.frame) == null) return
        // Consent may have been withdrawn on another screen.
        if (needsMembership && sendElsewhere()) return
        seen = CoroutineScope(Job() + app.main)
        whileSeen(app.photos.problem, ::showProblem)
        // Erasing may end while another screen is open; that screen then leads back to consent.
        if (needsMembership) whileSeen(app.erasing.state) { if (it is Erasing.State.Done) sendElsewhere() }
        follow()
    }

    override fun onStop() {
        seen?.cancel()
        seen = null
        super.onStop()
    }

    /** Call [show] now and with every change, while the screen is visible. */
    internal fun <T> whileSeen(
        flow: Flow<T>,
        show: (T) -> Unit,
    ) {
        seen?.launch { flow.collect { show(it) } }
    }

    internal val percent: NumberFormat
        get() = NumberFormat.getPercentInstance(resources.configuration.locales[0])

    /** The model's suggestion of a class, in words. */
    internal fun suggested(
        name: String,
        probability: Double,
    ): String = getString(R.string.suggested, app.settings.shown(name), percent.format(probability))

    internal fun fill(
        content: Int,
        title: Int,
    ) {
        setContentView(R.layout.frame)
        layoutInflater.inflate(content, findViewById<ViewGroup>(R.id.content), true)
        findViewById<TextView>(R.id.title).setText(title)
        val back = findViewById<ImageButton>(R.id.back)
        back.isVisible = hasBack
        back.setOnClickListener { finish() }
        val settings = findViewById<ImageButton>(R.id.open_settings)
        settings.isVisible = tab != null
        settings.setOnClickListener { startActivity(Intent(this, SettingsActivity::class.java)) }
        findViewById<LinearLayout>(R.id.tabs).apply {
            isVisible = tab != null
            if (tab != null) Tab.entries.forEach { addView(tabView(it, this)) }
        }
        findViewById<View>(R.id.frame).setOnApplyWindowInsetsListener { frame, insets -> fit(frame, insets) }
    }

    private fun showProblem(problem: String?) {
        findViewById<TextView>(R.id.album_problem).apply {
            text = getString(R.string.album_problem, problem.orEmpty())
            isVisible = problem != null
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
            // The only text of limited size: four labels stand side by side.
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

    /** Open another tab; the back button leads from every tab to the first. */
    private fun turnTo(other: Tab) {
        startActivity(Intent(this, other.screen).addFlags(Intent.FLAG_ACTIVITY_REORDER_TO_FRONT))
        if (tab != Tab.COLLECT) finish()
    }

    private fun sendElsewhere(): Boolean {
        val first =
            when {
                // Consent follows the invitation, which says who asks for it.
                !app.settings.run { isEnrolled || wasWithdrawn } -> EnrolActivity::class.java
                !app.settings.hasConsent -> ConsentActivity::class.java
                !app.settings.isEnrolled -> EnrolActivity::class.java
                else -> return false
            }
        startActivity(Intent(this, first))
        finish()
        return true
    }

    /** Keep content clear of system bars and keyboard; the background of the tabs reaches the edge. */
    private fun fit(
        frame: View,
        insets: WindowInsets,
    ): WindowInsets {
        val edges = if (Build.VERSION.SDK_INT >= Build.VERSION_CODES.R) edges(insets) else olderEdges(insets)
        val bar = findViewById<LinearLayout>(R.id.tabs)
        // The ground of tabs at the bottom reaches the edge; a rail stands above it.
        val ofBar = if (bar.isVisible && bar.orientation == LinearLayout.HORIZONTAL) edges[EDGE_BELOW] else 0
        frame.setPadding(edges[0], edges[1], edges[2], edges[EDGE_BELOW] - ofBar)
        bar.setPadding(0, 0, 0, ofBar)
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
