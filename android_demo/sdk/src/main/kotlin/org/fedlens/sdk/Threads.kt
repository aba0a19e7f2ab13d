package org.fedlens.sdk

import kotlinx.coroutines.CoroutineScope
import kotlinx.coroutines.ExecutorCoroutineDispatcher
import kotlinx.coroutines.asCoroutineDispatcher
import kotlinx.coroutines.currentCoroutineContext
import kotlinx.coroutines.job
import kotlinx.coroutines.joinAll
import java.util.concurrent.Executors

/** A thread for coroutines, which does not keep the process alive. */
internal fun threadOfItsOwn(name: String): ExecutorCoroutineDispatcher =
    Executors.newSingleThreadExecutor { work -> Thread(work, name).apply { isDaemon = true } }.asCoroutineDispatcher()

/** Cancel every call of this scope but the own one, and wait for them to end. */
internal suspend fun CoroutineScope.endOthers() {
    val own = currentCoroutineContext().job
    while (true) {
        val others = coroutineContext.job.children.filter { it != own }.toList()
        if (others.isEmpty()) return
        others.forEach { it.cancel() }
        others.joinAll()
    }
}
