package org.fedlens.app

import kotlinx.coroutines.CoroutineScope
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.SupervisorJob
import kotlinx.coroutines.cancel

/** The open resources and running work of one process; each part is created on first use. */
internal class Life(
    private val app: FedLensApp,
) {
    /** The scope of work that outlives the screen that started it. */
    val scope: CoroutineScope by lazy { CoroutineScope(SupervisorJob() + Dispatchers.Main) }

    val surroundings: Surroundings by lazy { app.surroundings() }
    val settings: Settings by lazy { Settings(app) }
    val network: Network by lazy { Network(app) }
    val photos: Photos by lazy { Photos(app) }
    val learning: Learning by lazy { Learning(app) }
    val suggestions: Suggestions by lazy { Suggestions(app) }
    val joining: Joining by lazy { Joining(app) }
    val erasing: Erasing by lazy { Erasing(app) }
    val schedule: Schedule by lazy { Schedule(app) }

    /** Cancel running work and close what is open. */
    fun end() {
        scope.cancel()
        learning.closeNow()
        photos.closeNow()
    }
}
