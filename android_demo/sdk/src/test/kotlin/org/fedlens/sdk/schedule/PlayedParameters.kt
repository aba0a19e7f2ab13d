package org.fedlens.sdk.schedule

import android.app.job.JobParameters
import android.os.Binder
import android.os.IInterface
import org.robolectric.util.ReflectionHelpers
import java.lang.reflect.Proxy

/** Parameters with which a test, in Android's place, starts and stops a job; the app's tests use them, too. */
fun jobParameters(
    id: Int,
    stopReason: Int = 0,
): JobParameters {
    val callback = Class.forName("android.app.job.IJobCallback")
    val binder = Binder()
    val system =
        Proxy.newProxyInstance(callback.classLoader, arrayOf(callback)) { _, method, _ ->
            binder.takeIf { method.name == "asBinder" }
        }
    binder.attachInterface(system as IInterface, callback.name)
    val parameters = ReflectionHelpers.newInstance(JobParameters::class.java)
    ReflectionHelpers.setField(parameters, "jobId", id)
    ReflectionHelpers.setField(parameters, "mStopReason", stopReason)
    ReflectionHelpers.setField(parameters, "callback", binder)
    return parameters
}
