package org.fedlens.sdk

import android.os.Build
import org.robolectric.util.ReflectionHelpers

/** Run [work] on an Android that says it is of this API level. */
fun onAndroid(
    level: Int,
    work: () -> Unit,
) {
    val here = Build.VERSION.SDK_INT
    ReflectionHelpers.setStaticField(Build.VERSION::class.java, "SDK_INT", level)
    try {
        work()
    } finally {
        ReflectionHelpers.setStaticField(Build.VERSION::class.java, "SDK_INT", here)
    }
}
