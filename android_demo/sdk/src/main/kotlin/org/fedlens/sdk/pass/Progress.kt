package org.fedlens.sdk.pass

import kotlinx.coroutines.ensureActive
import org.fedlens.sdk.Event
import kotlin.coroutines.CoroutineContext

/** Tells of work that goes on, seldom enough not to slow it down, and ends it when its caller is cancelled. */
internal class Progress(
    private val context: CoroutineContext,
    private val nanoTime: () -> Long,
    private val emit: (Event) -> Unit,
) {
    private var last: Long? = null

    /** Throws a cancellation if the caller is cancelled. */
    fun check(): Unit = context.ensureActive()

    /** Emits an event if none was for a while, or if it [isLast]; throws as [check]. */
    fun tell(
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
