package org.fedlens.app

import android.os.Handler
import kotlinx.coroutines.CoroutineDispatcher
import kotlinx.coroutines.CoroutineScope
import kotlinx.coroutines.SupervisorJob
import kotlinx.coroutines.asCoroutineDispatcher
import kotlinx.coroutines.cancel
import java.util.concurrent.Executor

/** The open resources and running work of one process; each part is created on first use. */
internal class Life(
    private val app: FedLensApp,
) {
    /** The main thread. */
    val main: CoroutineDispatcher by lazy {
        val handler = Handler(app.mainLooper)
        Executor { handler.post(it) }.asCoroutineDispatcher()
    }

    /** The scope of work that outlives the screen that started it. */
    val scope: CoroutineScope by lazy { CoroutineScope(SupervisorJob() + main) }

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
