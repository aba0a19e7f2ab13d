package org.fedlens.app

import android.content.Context
import org.fedlens.sdk.Policy

/** The owner's decisions, and the server that the phone has joined. Stored on disk; safe to use from any thread. */
internal class Settings(
    context: Context,
) {
    private val kept = context.getSharedPreferences("settings", Context.MODE_PRIVATE)

    /** True once the owner has consented; until then nothing is sent or fetched. */
    var hasConsent by Kept("consent", false)

    /** True after consent was withdrawn. */
    var wasWithdrawn by Kept("withdrawn", false)

    /** True once the server has enrolled this phone. */
    var isEnrolled by Kept("enrolled", false)

    /** True while learning is paused. */
    var isPaused by Kept("paused", false)

    /** True if the phone learns in the background, under the conditions below. */
    var learnsInBackground by Kept("background", false)
    var onlyWhileCharging by Kept("charging", true)
    var onlyUnmetered by Kept("unmetered", true)
    var onlyWhileIdle by Kept("idle", false)

    /** True if trained weights must not leave the phone. */
    var keepsModelLocal by Kept("local", false)
    var tellsClassCounts by Kept("class_counts", true)
    var tellsEvaluation by Kept("evaluation", true)

    /** The invitation to the server that the phone has joined or is joining. */
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

    /** The last known classes of the model, in its order, so that photos can be labelled offline. */
    var classNames: List<String>
        get() = kept.getString("classes", "").orEmpty().split('\n').filter { it.isNotEmpty() }
        set(names) {
            kept.edit().putString("classes", names.joinToString("\n")).commit()
        }

    /** These decisions as a policy of the SDK. */
    val policy: Policy
        get() =
            Policy(
                upload = !keepsModelLocal,
                answerClassCounts = tellsClassCounts,
                answerLabelDistribution = tellsClassCounts,
                answerEvaluation = tellsEvaluation,
                answerConfusion = tellsEvaluation && tellsClassCounts,
            )

    /** Delete every decision, including consent. */
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

        // Synchronous: a decision about what may leave the phone must not be lost.
        operator fun setValue(
            settings: Settings,
            property: Any?,
            value: Boolean,
        ) {
            settings.kept.edit().putBoolean(key, value).commit()
        }
    }
}
