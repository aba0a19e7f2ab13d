package org.fedlens.app

import android.app.Application
import kotlinx.coroutines.CoroutineDispatcher
import kotlinx.coroutines.CoroutineScope
import org.fedlens.sdk.AndroidPlatform
import java.io.File

/** The objects that live as long as the process; screens come and go. */
open class FedLensApp : Application() {
    internal val main: CoroutineDispatcher get() = life.main
    internal val scope: CoroutineScope get() = life.scope
    internal val surroundings: Surroundings get() = life.surroundings
    internal val settings: Settings get() = life.settings
    internal val network: Network get() = life.network
    internal val photos: Photos get() = life.photos
    internal val learning: Learning get() = life.learning
    internal val suggestions: Suggestions get() = life.suggestions
    internal val joining: Joining get() = life.joining
    internal val erasing: Erasing get() = life.erasing
    internal val schedule: Schedule get() = life.schedule

    /** True if a link may name the publishers whose bundles run here. An app of your own brings their keys instead. */
    internal open val publishersFromLink: Boolean = true

    /** The number of visible screens. */
    internal var screensSeen = 0

    /** True while a screen is visible. */
    internal val isSeen: Boolean get() = screensSeen > 0

    /** The folder of the SDK's client. */
    internal val clientFolder: File get() = File(filesDir, "client")

    /** The folder of the photo album. */
    internal val albumFolder: File get() = File(filesDir, "album")

    /** All state that does not outlive the process. */
    internal var life: Life = Life(this)
        private set

    /** Replaced by tests, which have no phone. */
    internal open fun surroundings(): Surroundings = Surroundings.of(this)

    override fun onCreate() {
        super.onCreate()
        if (AndroidPlatform.isProgramProcess()) return
        LearnNotification.makeChannel(this)
    }

    override fun onTerminate() {
        life.end()
        super.onTerminate()
    }

    /** Simulate the end of the process and the start of another: only what is on the disk remains. */
    internal fun startAgain() {
        life.end()
        life = Life(this)
    }
}
