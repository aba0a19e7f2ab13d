package org.fedlens.app

import android.content.Context
import android.content.SharedPreferences
import android.os.StrictMode
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.asExecutor
import kotlinx.coroutines.withContext
import org.fedlens.sdk.Policy
import org.fedlens.sdk.album.AlbumPhoto
import org.fedlens.sdk.schedule.Conditions
import java.util.Locale
import java.util.concurrent.TimeUnit

/**
 * The owner's decisions, and the server that the phone has joined. Safe to use from any thread: a change holds at once
 * and is stored behind the caller's back; where the order of files matters, wait for [stored].
 */
internal class Settings(
    context: Context,
) {
    private val resources = context.resources
    private val preferences = read(context)

    /** True once the owner has consented; until then nothing is sent or fetched. */
    var hasConsent by Stored("consent", false)

    /** True after consent was withdrawn. */
    var wasWithdrawn by Stored("withdrawn", false)

    /** True while the server is asked to forget this phone, which then must not enrol anew. */
    var isErasing by Stored("erasing", false)

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

    /** Answers that a server may ask for; none is given before the owner has allowed it. */
    var tellsClassCounts by Stored("class_counts", false)
    var tellsEvaluation by Stored("evaluation", false)

    /** The conditions of learning in the background. */
    val conditions: Conditions
        get() =
            Conditions(
                TimeUnit.HOURS.toMillis(1),
                charging = onlyWhileCharging,
                unmetered = onlyUnmetered,
                idle = onlyWhileIdle,
            )

    /** The invitation to the server that the phone has joined or is joining. */
    var link: EnrolmentLink?
        get() {
            val server = preferences.getString("server", null) ?: return null
            val token = preferences.getString("token", "").orEmpty()
            val texts = listOf("operator", "purpose").map { preferences.getString(it, "").orEmpty() }
            return EnrolmentLink(server, token, words("pins"), words("ca"), words("publishers"), texts[0], texts[1])
        }
        set(link) {
            change {
                putString("server", link?.server)
                putString("token", link?.token)
                putString("pins", link?.pins?.joinToString(" "))
                putString("ca", link?.ca?.joinToString(" "))
                putString("publishers", link?.publishers?.joinToString(" "))
                putString("operator", link?.operator)
                putString("purpose", link?.purpose)
            }
        }

    /** The server that the owner was shown when consenting; null if there was none to show. */
    var consentedTo: String?
        get() = preferences.getString("consented_to", null)
        set(server) = change { putString("consented_to", server) }

    /** True if the owner has to be asked before this phone joins by [link]. */
    fun needsConsent(link: EnrolmentLink): Boolean = !hasConsent || consentedTo.let { it != null && it != link.server }

    /** The last known classes of the model, in its order, so that photos can be labelled offline. */
    var classNames: List<String>
        get() = preferences.getString("classes", "").orEmpty().split('\n').filter { it.isNotEmpty() }
        set(names) = change { putString("classes", names.joinToString("\n")) }

    /** Ids of photos that show none of the classes, and that the owner is not asked about any more. */
    var setAside: Set<Long>
        get() = preferences.getStringSet("set_aside", null).orEmpty().mapTo(HashSet()) { it.toLong() }
        set(ids) = change { putStringSet("set_aside", ids.mapTo(HashSet()) { "$it" }) }

    /** The photos that wait for a class. */
    fun unlabelled(photos: List<AlbumPhoto>): List<AlbumPhoto> {
        val aside = setAside
        return photos.filter { it.label == null && it.id !in aside }
    }

    /** The name of each class to show, if known, in the language that comes first. */
    private var displayNames: List<String>
        get() = preferences.getString("display_names", "").orEmpty().split('\n')
        set(lines) = change { putString("display_names", lines.joinToString("\n")) }

    /** The name by which people of the phone's language know a class. */
    fun shown(name: String): String {
        val place = classNames.indexOf(name)
        return if (knowsDisplayNames && place >= 0) displayNames.getOrElse(place + 1) { name } else name
    }

    /** True if [shown] has the names in the phone's language, of the classes as they are now. */
    val knowsDisplayNames: Boolean
        get() = displayNames.let { it.first() == locale.toLanguageTag() && it.size == classNames.size + 1 }

    /** Keep the classes with the names to show in [language]. */
    fun keepClasses(
        names: Map<String, String>,
        language: Locale,
    ) {
        classNames = names.keys.toList()
        displayNames = listOf(language.toLanguageTag()) + names.values
    }

    /** The language in which the app speaks. */
    val locale: Locale get() = resources.configuration.locales[0]

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

    /** Withdraw consent. Who agrees again is asked again what may be told. */
    fun withdraw() {
        hasConsent = false
        wasWithdrawn = true
        isErasing = false
        tellsClassCounts = false
        tellsEvaluation = false
    }

    /** Wait until all changes so far are on disk. */
    suspend fun stored() = withContext(Dispatchers.IO) { store() }

    /** Delete every decision, including consent, and wait for the disk. */
    fun erase() {
        preferences.edit().clear().commit()
    }

    private fun change(what: SharedPreferences.Editor.() -> Unit) {
        preferences.edit().apply(what).apply()
        // At once: Android waits a tenth of a second, and a decision about what may leave the phone must not be lost.
        Dispatchers.IO.asExecutor().execute(::store)
    }

    // A change of nothing, which waits for those before it.
    private fun store() {
        preferences.edit().commit()
    }

    // A file of a few hundred bytes, and at the first start its folder. The main thread may wait for it: without it no
    // screen can be chosen.
    private fun read(context: Context): SharedPreferences {
        val policy = StrictMode.allowThreadDiskWrites()
        try {
            return context.getSharedPreferences("settings", Context.MODE_PRIVATE).apply { contains("consent") }
        } finally {
            StrictMode.setThreadPolicy(policy)
        }
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

        operator fun setValue(
            settings: Settings,
            property: Any?,
            value: Boolean,
        ) = settings.change { putBoolean(key, value) }
    }
}
