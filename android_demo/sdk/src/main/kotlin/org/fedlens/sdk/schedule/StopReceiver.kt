package org.fedlens.sdk.schedule

import android.content.BroadcastReceiver
import android.content.Context
import android.content.Intent
import org.fedlens.sdk.FedLens

/** Ends the job that is running: the receiver of [FedLens.stopIntent]. */
public class StopReceiver : BroadcastReceiver() {
    override fun onReceive(
        context: Context,
        intent: Intent,
    ) {
        FedLens.current?.stop()
    }
}
