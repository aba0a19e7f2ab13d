package org.fedlens.sdk

import android.app.Application
import android.content.Context
import android.net.ConnectivityManager
import android.net.NetworkCapabilities
import android.os.Build
import android.os.Process
import org.fedlens.sdk.engine.ExecuTorchRuntime
import org.fedlens.sdk.engine.ProgramRuntime
import org.fedlens.sdk.engine.child.SeparateRuntime
import org.fedlens.sdk.photo.BitmapDecoder
import org.fedlens.sdk.photo.HeicPhoto
import org.fedlens.sdk.photo.PhotoDecoder
import org.fedlens.sdk.store.AndroidDatabase
import org.fedlens.sdk.store.Database
import java.io.File

/**
 * The Android platform: Android's SQLite and decoders, and the `executorch-android` AAR from the app's dependencies.
 */
public class AndroidPlatform(
    context: Context,
) : Platform {
    private val application = context.applicationContext

    // A new installation may bring another ExecuTorch, so programs must be tried again.
    override val runtime: ProgramRuntime by lazy {
        val installed = application.packageManager.getPackageInfo(application.packageName, 0)
        ExecuTorchRuntime("${installed.versionName}, installed at ${installed.lastUpdateTime}")
    }

    private val separate = HashMap<Pair<Boolean, Boolean>, ProgramRuntime>()

    /** As [Platform.separateRuntime]; from Android 11 on. */
    override fun separateRuntime(
        mustBeIsolated: Boolean,
        forPredictions: Boolean,
    ): ProgramRuntime? {
        if (Build.VERSION.SDK_INT < SeparateRuntime.LEAST_ANDROID) return null
        return synchronized(separate) {
            separate.getOrPut(mustBeIsolated to forPredictions) {
                SeparateRuntime(application, runtime.version, mustBeIsolated, forPredictions)
            }
        }
    }

    override val hasUnmeteredNetwork: Boolean
        get() {
            val manager = application.getSystemService(ConnectivityManager::class.java) ?: return false
            val network = manager.getNetworkCapabilities(manager.activeNetwork) ?: return false
            return network.hasCapability(NetworkCapabilities.NET_CAPABILITY_NOT_METERED)
        }

    override val decoder: PhotoDecoder = BitmapDecoder()

    /** As [Platform.jpegOf]; from Android 9 on. */
    override fun jpegOf(heic: ByteArray): ByteArray? =
        if (Build.VERSION.SDK_INT < HeicPhoto.LEAST_ANDROID) null else HeicPhoto.toJpeg(heic)

    override val applicationId: String get() = application.packageName

    override val floors: File get() = File(application.noBackupFilesDir, "fedlens-floors.sqlite3")

    override fun openDatabase(file: File): Database = AndroidDatabase.open(file)

    public companion object {
        /**
         * True in a process that runs the programs of bundles. Android creates the app's [android.app.Application]
         * there too, whose `onCreate` must return at once: it finds neither the app's files nor most services.
         */
        @JvmStatic
        public fun isProgramProcess(): Boolean = Build.VERSION.SDK_INT >= SeparateRuntime.LEAST_ANDROID && isSeparate()

        @NewerAndroid(SeparateRuntime.LEAST_ANDROID)
        private fun isSeparate() = Process.isIsolated() || ":fedlens" in Application.getProcessName()
    }
}
