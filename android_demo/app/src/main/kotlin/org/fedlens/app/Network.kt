package org.fedlens.app

import android.content.Context
import android.net.ConnectivityManager
import android.net.Network
import kotlinx.coroutines.flow.MutableStateFlow
import kotlinx.coroutines.flow.StateFlow

/** The availability of a network. */
internal class Network(
    context: Context,
) {
    private val manager = context.getSystemService(ConnectivityManager::class.java)
    private val found = MutableStateFlow(manager.activeNetwork != null)

    /** True while there is a network. */
    val isThere: StateFlow<Boolean> = found

    init {
        manager.registerDefaultNetworkCallback(
            object : ConnectivityManager.NetworkCallback() {
                override fun onAvailable(network: Network) {
                    found.value = true
                }

                override fun onLost(network: Network) {
                    found.value = false
                }
            },
        )
    }
}
