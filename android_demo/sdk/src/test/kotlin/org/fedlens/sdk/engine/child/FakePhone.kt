package org.fedlens.sdk.engine.child

import android.content.ComponentName
import android.content.Context
import android.content.ContextWrapper
import android.content.Intent
import android.content.ServiceConnection
import android.os.DeadObjectException
import android.os.IBinder
import android.os.Parcel
import org.robolectric.RuntimeEnvironment
import java.util.Collections
import java.util.concurrent.CountDownLatch
import java.util.concurrent.Executor

/**
 * Android as far as it starts and ends the processes of services: each binding gets a fresh one, which dies with it.
 *
 * @param loader What loads the programs there.
 */
internal class FakePhone(
    var loader: Loader,
) : ContextWrapper(RuntimeEnvironment.getApplication()) {
    val started = mutableListOf<FakeProcess>()

    /** Names of the services that the manifest lacks. */
    var missing = emptySet<String>()

    /** Names of the services whose processes never come up. */
    var stuck = emptySet<String>()

    /** Names of the services whose processes die before they come up. */
    var dying = emptySet<String>()

    /** Whether isolated processes may open descriptors by path. */
    var isLenient = true

    /** Replaces the answers to these calls. */
    val answers = HashMap<Int, (Parcel) -> Boolean>()
    private val bindings = HashMap<ServiceConnection, FakeProcess?>()

    /** The processes that have not ended. */
    val alive: List<String> get() = started.filterNot { it.isDead }.map { it.service }

    override fun getApplicationContext(): Context = this

    override fun bindService(
        service: Intent,
        flags: Int,
        executor: Executor,
        connection: ServiceConnection,
    ): Boolean {
        val name = checkNotNull(service.component)
        val short = name.shortClassName.substringAfterLast('.')
        bindings[connection] = null
        if (short in missing) return false
        if (short in stuck) return true
        if (short in dying) {
            executor.execute { connection.onBindingDied(name) }
            return true
        }
        val process = FakeProcess(this, short, name, connection).also { started += it }
        bindings[connection] = process
        executor.execute { connection.onServiceConnected(name, process) }
        return true
    }

    override fun unbindService(connection: ServiceConnection) {
        require(connection in bindings) { "not bound" }
        bindings.remove(connection)?.die()
    }
}

/** A process of a service, which runs in this one, but dies by itself. */
internal class FakeProcess private constructor(
    private val phone: FakePhone,
    val service: String,
    private val name: ComponentName,
    private val connection: ServiceConnection,
    private val binder: ProgramBinder,
) : IBinder by binder {
    constructor(
        phone: FakePhone,
        service: String,
        name: ComponentName,
        connection: ServiceConnection,
    ) : this(phone, service, name, connection, ProgramBinder(phone.loader))

    private val death = CountDownLatch(1)
    val calls: MutableList<Int> = Collections.synchronizedList(mutableListOf())
    val isDead: Boolean get() = death.count == 0L

    fun die() = death.countDown()

    /** Ends the process, as Android does when it needs the memory, and tells its client. */
    fun beKilled() {
        die()
        connection.onServiceDisconnected(name)
    }

    fun awaitDeath() = death.await()

    override fun isBinderAlive() = !isDead

    override fun transact(
        code: Int,
        data: Parcel,
        reply: Parcel?,
        flags: Int,
    ): Boolean {
        if (isDead) throw DeadObjectException()
        calls += code
        val answer = phone.answers[code] ?: PROBED.takeIf { code == Link.PROBE }?.getValue(phone.isLenient)
        val isKnown = answer?.invoke(checkNotNull(reply)) ?: binder.transact(code, data, reply, flags)
        if (isDead) throw DeadObjectException()
        reply?.setDataPosition(0)
        return isKnown
    }

    private companion object {
        /** Answers to the question whether descriptors can be opened by path, which Robolectric cannot play. */
        val PROBED =
            mapOf(true to (Link.Status.DONE to null), false to (Link.Status.FAILED to "it cannot open"))
                .mapValues { (_, answer) ->
                    { reply: Parcel ->
                        reply.writeInt(answer.first.code)
                        reply.writeString(answer.second)
                        true
                    }
                }
    }
}
