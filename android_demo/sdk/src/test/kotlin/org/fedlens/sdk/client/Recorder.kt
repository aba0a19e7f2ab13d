package org.fedlens.sdk.client

import org.fedlens.sdk.Callbacks
import org.fedlens.sdk.ClientState
import org.fedlens.sdk.Event
import org.junit.Assert.assertTrue
import java.util.concurrent.CopyOnWriteArrayList
import java.util.concurrent.CountDownLatch
import java.util.concurrent.TimeUnit

/** Callbacks that record events and states. */
class Recorder : Callbacks {
    val events = CopyOnWriteArrayList<Event>()
    val states = CopyOnWriteArrayList<ClientState>()
    private val ended = CountDownLatch(1)

    @Volatile
    var error: Exception? = null
        private set

    @Volatile
    var ends = 0
        private set

    override fun onEvent(event: Event) {
        events += event
    }

    override fun onState(state: ClientState) {
        states += state
    }

    override fun onEnd(error: Exception?) {
        this.error = error
        ends++
        ended.countDown()
    }

    fun awaitEnd() = assertTrue("it has not ended", ended.await(30, TimeUnit.SECONDS))
}
