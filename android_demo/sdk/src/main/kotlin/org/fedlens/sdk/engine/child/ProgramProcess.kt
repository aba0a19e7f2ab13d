package org.fedlens.sdk.engine.child

import android.app.Service
import android.content.ComponentName
import android.content.Context
import android.content.Intent
import android.content.ServiceConnection
import android.os.IBinder
import android.os.Parcel
import android.os.RemoteException
import org.fedlens.sdk.EngineException
import org.fedlens.sdk.EngineException.Reason
import org.fedlens.sdk.NewerAndroid
import org.fedlens.sdk.engine.child.Link.Status
import org.fedlens.sdk.engine.unusable
import java.util.concurrent.CompletableFuture
import java.util.concurrent.ExecutionException
import java.util.concurrent.ScheduledThreadPoolExecutor
import java.util.concurrent.TimeUnit
import java.util.concurrent.TimeoutException
import java.util.concurrent.atomic.AtomicBoolean

/** Signals the end of a process that another call has told of, so that it counts once. */
internal class LostToAnother : Exception()

/** The cause of a failure to start a process in time, which another attempt may not meet. */
internal class NotStarted(
    message: String,
) : Exception(message)

/**
 * A process for programs, as the app sees it. After it has run a program it counts as hostile: a reply that is not as
 * [Link] says ends it.
 *
 * @param service The service that is this process.
 * @param limitMs Longest time for a start, and for one call.
 * @throws EngineException With reason `RUNTIME_MISSING`: it cannot be started; caused by [NotStarted]: not now.
 */
@NewerAndroid(SeparateRuntime.LEAST_ANDROID)
internal class ProgramProcess(
    private val context: Context,
    service: Class<out Service>,
    private val limitMs: Long,
) : ServiceConnection {
    private val bound = CompletableFuture<IBinder>()
    private val binder: IBinder

    @Volatile private var hasEnded = false
    private val isLost = AtomicBoolean()

    /** False if it has ended, by itself or from here. */
    val isAlive: Boolean get() = !hasEnded && binder.isBinderAlive

    init {
        // Not on the main thread, which may be waiting for this one.
        val isThere = context.bindService(Intent(context, service), Context.BIND_AUTO_CREATE, Runnable::run, this)
        try {
            if (!isThere) throw IllegalStateException("the app's manifest must have the services of the SDK's manifest")
            binder = bound.get(limitMs, TimeUnit.MILLISECONDS)
        } catch (error: Exception) {
            end()
            val cause =
                when (error) {
                    is TimeoutException -> NotStarted("it has not started within ${limitMs / MS_PER_S} s")
                    is ExecutionException -> error.cause
                    else -> error
                }
            val why = "programs cannot run in a process of their own: ${cause?.message}"
            throw EngineException(Reason.RUNTIME_MISSING, why, cause)
        }
    }

    /**
     * Call the process, and wait until it is done.
     *
     * @param program Name of the program, for messages.
     * @throws EngineException With reason `CRASHED`: it has ended, does not answer, or not as it should. With another
     *     reason: the call has failed; the text says why.
     * @throws LostToAnother It has ended, and another call that was under way tells of it.
     */
    fun call(
        code: Int,
        program: String,
        write: (Parcel) -> Unit,
    ) {
        val (request, reply) = Parcel.obtain() to Parcel.obtain()
        val alarm = WATCH.schedule(::end, limitMs, TimeUnit.MILLISECONDS)
        try {
            write(request)
            if (!binder.transact(code, request, reply, 0)) lost(program, OTHER_PROTOCOL)
            read(program, reply)
        } catch (error: RemoteException) {
            val why = if (alarm.isDone) "did not answer within ${limitMs / MS_PER_S} s" else ENDED
            lost(program, why, error)
        } finally {
            alarm.cancel(false)
            request.recycle()
            reply.recycle()
        }
    }

    /** End the process, if it has not ended. */
    @Synchronized
    fun end() {
        if (hasEnded) return
        hasEnded = true
        // An isolated process ends with its only service, the other one ends itself.
        context.unbindService(this)
    }

    override fun onServiceConnected(
        name: ComponentName,
        binder: IBinder,
    ) {
        bound.complete(binder)
    }

    // Otherwise the system would start it again, for nobody.
    override fun onServiceDisconnected(name: ComponentName) = end()

    override fun onBindingDied(name: ComponentName) {
        bound.completeExceptionally(NotStarted("it has ended while it started"))
        end()
    }

    override fun onNullBinding(name: ComponentName) {
        bound.completeExceptionally(IllegalStateException("its service gives nothing to call"))
    }

    private fun read(
        program: String,
        reply: Parcel,
    ) {
        val (status, text) =
            try {
                val code = reply.readInt()
                val found = Status.entries.find { it.code == code } to reply.readString()
                found.takeIf { reply.dataAvail() == 0 && !reply.hasFileDescriptors() }
            } catch (_: RuntimeException) {
                null
            } ?: lost(program, OTHER_PROTOCOL)
        val isWhole = (text == null) == (status == Status.DONE) && text.orEmpty().length <= Link.MOST_TEXT
        if (status == null || !isWhole) lost(program, OTHER_PROTOCOL)
        val shown = text.orEmpty().replace(UNPRINTABLE, "?")
        when (status) {
            Status.DONE -> Unit
            Status.FAILED -> unusable(shown)
            Status.RUNTIME_MISSING -> throw EngineException(Reason.RUNTIME_MISSING, shown)
        }
    }

    private fun lost(
        program: String,
        why: String,
        cause: Exception? = null,
    ): Nothing {
        end()
        if (!isLost.compareAndSet(false, true)) throw LostToAnother()
        throw EngineException(Reason.CRASHED, "program '$program' cannot be used: its process $why", cause)
    }

    private companion object {
        const val MS_PER_S = 1_000L
        const val OTHER_PROTOCOL = "does not keep to the protocol"
        const val ENDED = "has ended: the program is damaged or hostile, or the phone had no more memory"
        val UNPRINTABLE = Regex("""\p{C}""")

        /** Ends processes that take too long. */
        val WATCH =
            ScheduledThreadPoolExecutor(1) { work -> Thread(work, "fedlens-watch").apply { isDaemon = true } }
                .apply { removeOnCancelPolicy = true }
    }
}
