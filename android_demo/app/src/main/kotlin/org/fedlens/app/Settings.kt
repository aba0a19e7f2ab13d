package org.fedlens.app

import android.content.Context
import org.fedlens.sdk.Policy

/**
 * What the owner of the phone has decided, and where the phone has joined. Survives the process; read and written in
 * any thread.
 */
internal class Settings(
    context: Context,
) {
    private val kept = context.getSharedPreferences("settings", Context.MODE_PRIVATE)

    /** Nothing leaves or is fetched before this is true. */
    var hasConsent by Kept("consent", false)

    /** Consent was given once and taken back. */
    var wasWithdrawn by Kept("withdrawn", false)

    /** The server knows this phone. */
    var isEnrolled by Kept("enrolled", false)

    /** Nothing is learnt until this is false again. */
    var isPaused by Kept("paused", false)

    /** Learn without being asked each time, under the conditions below. */
    var learnsInBackground by Kept("background", false)
    var onlyWhileCharging by Kept("charging", true)
    var onlyUnmetered by Kept("unmetered", true)
    var onlyWhileIdle by Kept("idle", false)

    /** No trained weights leave. */
    var keepsModelLocal by Kept("local", false)
    var tellsClassCounts by Kept("class_counts", true)
    var tellsEvaluation by Kept("evaluation", true)

    /** Where the phone has joined, or is joining. */
    var link: EnrolmentLink?
        get() {
            val server = kept.getString("server", null) ?: return null
            return EnrolmentLink(server, kept.getString("token", "").orEmpty(), words("pins"), words("ca"))
        }
        set(link) {
            kept
                .edit()
                .apply {
                    putString("server", link?.server)
                    putString("token", link?.token)
                    putString("pins", link?.pins?.joinToString(" "))
                    putString("ca", link?.ca?.joinToString(" "))
                }.commit()
        }

    /** The classes of the model, in its order, as they were known last; so that photos can be labelled offline. */
    var classNames: List<String>
        get() = kept.getString("classes", "").orEmpty().split('\n').filter { it.isNotEmpty() }
        set(names) {
            kept.edit().putString("classes", names.joinToString("\n")).commit()
        }

    /** The same as the SDK takes it. */
    val policy: Policy
        get() =
            Policy(
                upload = !keepsModelLocal,
                answerClassCounts = tellsClassCounts,
                answerLabelDistribution = tellsClassCounts,
                answerEvaluation = tellsEvaluation,
                answerConfusion = tellsEvaluation && tellsClassCounts,
            )

    /** Forgets every decision, consent too. */
    fun erase() {
        kept.edit().clear().commit()
    }

    private fun words(key: String) = kept.getString(key, "").orEmpty().split(' ').filter { it.isNotEmpty() }

    private class Kept(
        private val key: String,
        private val unset: Boolean,
    ) {
        operator fun getValue(
            settings: Settings,
            property: Any?,
        ): Boolean = settings.kept.getBoolean(key, unset)

        // On the disk before the next thing happens: a word about what may leave must not be lost.
        operator fun setValue(
            settings: Settings,
            property: Any?,
            value: Boolean,
        ) {
            settings.kept.edit().putBoolean(key, value).commit()
        }
    }
}
