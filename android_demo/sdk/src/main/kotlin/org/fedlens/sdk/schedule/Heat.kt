package org.fedlens.sdk.schedule

import android.content.Context
import android.os.Build
import android.os.PowerManager
import kotlinx.coroutines.channels.awaitClose
import kotlinx.coroutines.flow.Flow
import kotlinx.coroutines.flow.callbackFlow
import kotlinx.coroutines.flow.conflate
import kotlinx.coroutines.flow.emptyFlow
import org.fedlens.sdk.NewerAndroid

/** The thermal status of the phone, 0 to 6; before Android 10 there is none. */
internal object Heat {
    /** The status now. */
    fun now(context: Context): Int = if (Build.VERSION.SDK_INT >= Build.VERSION_CODES.Q) status(power(context)) else 0

    /** The status whenever it changes. */
    fun changes(context: Context): Flow<Int> =
        if (Build.VERSION.SDK_INT >= Build.VERSION_CODES.Q) followed(power(context)) else emptyFlow()

    private fun power(context: Context) = checkNotNull(context.getSystemService(PowerManager::class.java))

    @NewerAndroid(Build.VERSION_CODES.Q)
    private fun status(power: PowerManager) = power.currentThermalStatus

    private fun followed(power: PowerManager): Flow<Int> =
        callbackFlow {
            val leave = follow(power) { trySend(it) }
            awaitClose(leave)
        }.conflate()

    /** Call [listener] with each change, until the result is called. */
    @NewerAndroid(Build.VERSION_CODES.Q)
    private fun follow(
        power: PowerManager,
        listener: (Int) -> Unit,
    ): () -> Unit {
        val registered = PowerManager.OnThermalStatusChangedListener(listener)
        power.addThermalStatusListener(registered)
        return Leaving(power, registered)
    }

    @NewerAndroid(Build.VERSION_CODES.Q)
    private class Leaving(
        private val power: PowerManager,
        private val registered: PowerManager.OnThermalStatusChangedListener,
    ) : () -> Unit {
        override fun invoke() = power.removeThermalStatusListener(registered)
    }
}
