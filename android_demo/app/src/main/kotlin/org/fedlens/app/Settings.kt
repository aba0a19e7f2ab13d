package org.fedlens.app

import android.content.Context
import org.fedlens.sdk.Policy

/** The owner's decisions, and the server that the phone has joined. Stored on disk; safe to use from any thread. */
internal class Settings(
    context: Context,
) {
    private val preferences = context.getSharedPreferences("settings", Context.MODE_PRIVATE)

    /** True once the owner has consented; until then nothing is sent or fetched. */
    var hasConsent by Stored("consent", false)

    /** True after consent was withdrawn. */
    var wasWithdrawn by Stored("withdrawn", false)

    /** True once the server has enrolled this phone. */
    var isEnrolled by Stored("enrolled", false)

    /** True while learning is paused. */
    var isPaused by Stored("paused", false)

    /** True if the phone learns in the background, under the conditions below. */
    var learnsInBackground by Stored("background", false)
    var onlyWhileCharging by Stored("charging", true)
    var onlyUnmetered by Stored("unmetered", true)
    var onlyWhileIdle by Stored("idle", false)

    /** True if trained weights must not leave the phone. */
    var keepsModelLocal by Stored("local", false)
    var tellsClassCounts by Stored("class_counts", true)
    var tellsEvaluation by Stored("evaluation", true)

    /** The invitation to the server that the phone has joined or is joining. */
    var link: EnrolmentLink?
        get() {
            val server = preferences.getString("server", null) ?: return null
            val token = preferences.getString("token", "").orEmpty()
            return EnrolmentLink(server, token, words("pins"), words("ca"), words("publishers"))
        }
        set(link) {
            preferences
                .edit()
                .apply {
                    putString("server", link?.server)
                    putString("token", link?.token)
                    putString("pins", link?.pins?.joinToString(" "))
                    putString("ca", link?.ca?.joinToString(" "))
                    putString("publishers", link?.publishers?.joinToString(" "))
                }.commit()
        }

    /** The last known classes of the model, in its order, so that photos can be labelled offline. */
    var classNames: List<String>
        get() = preferences.getString("classes", "").orEmpty().split('\n').filter { it.isNotEmpty() }
        set(names) {
            preferences.edit().putString("classes", names.joinToString("\n")).commit()
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
        preferences.edit().clear().commit()
    }

    private fun words(key: String) = preferences.getString(key, "").orEmpty().split(' ').filter { it.isNotEmpty() }

    private class Stored(
        private val key: String,
        private val unset: Boolean,
    ) {
        operator fun getValue(
            settings: Settings,
            property: Any?,
        ): Boolean = settings.preferences.getBoolean(key, unset)

        // Synchronous: a decision about what may leave the phone must not be lost.
        operator fun setValue(
            settings: Settings,
            property: Any?,
            value: Boolean,
        ) {
            settings.preferences.edit().putBoolean(key, value).commit()
        }
    }
}
