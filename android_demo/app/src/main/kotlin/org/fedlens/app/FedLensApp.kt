package org.fedlens.app

import android.app.Application
import kotlinx.coroutines.CoroutineDispatcher
import kotlinx.coroutines.CoroutineScope
import java.io.File

/** What lives as long as the process; screens come and go. */
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

    /** How many screens are in sight. */
    internal var screensSeen = 0

    /** Somebody looks at the app. */
    internal val isSeen: Boolean get() = screensSeen > 0

    /** What must outlive the process, for the SDK's client. */
    internal val clientFolder: File get() = File(filesDir, "client")

    /** Its photos. */
    internal val albumFolder: File get() = File(filesDir, "album")

    /** Everything that a new process begins without. */
    internal var life: Life = Life(this)
        private set

    /** Replaced by tests, which have no phone. */
    internal open fun surroundings(): Surroundings = Surroundings.of(this)

    override fun onCreate() {
        super.onCreate()
        LearnNotification.makeChannel(this)
    }

    override fun onTerminate() {
        life.end()
        super.onTerminate()
    }

    /** As if the process had ended and another one begun: nothing is left but what is on the disk. */
    internal fun startAgain() {
        life.end()
        life = Life(this)
    }
}
