package org.fedlens.sdk.training

import kotlinx.coroutines.ensureActive
import org.fedlens.sdk.Event
import kotlin.coroutines.CoroutineContext

/** Throttled progress events of running work, and its cancellation. */
internal class Progress(
    private val context: CoroutineContext,
    private val nanoTime: () -> Long,
    private val emit: (Event) -> Unit,
) {
    private var last: Long? = null

    /** Throw a cancellation exception if the caller is cancelled. */
    fun check(): Unit = context.ensureActive()

    /** Emit an event if it [isLast] or the previous one is long enough ago; throw as [check]. */
    fun report(
        isLast: Boolean,
        event: () -> Event,
    ) {
        check()
        val now = nanoTime()
        val before = last
        if (isLast || before == null || now - before >= EVERY_NS) {
            last = now
            emit(event())
        }
    }

    private companion object {
        const val EVERY_NS = 100_000_000L
    }
}
