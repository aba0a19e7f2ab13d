package org.fedlens.sdk

import android.content.Context
import org.fedlens.sdk.engine.ExecuTorchRuntime
import org.fedlens.sdk.engine.ProgramRuntime
import org.fedlens.sdk.photo.BitmapDecoder
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

    override val decoder: PhotoDecoder = BitmapDecoder()

    override val applicationId: String get() = application.packageName

    override val floors: File get() = File(application.noBackupFilesDir, "fedlens-floors.sqlite3")

    override fun openDatabase(file: File): Database = AndroidDatabase.open(file)
}
