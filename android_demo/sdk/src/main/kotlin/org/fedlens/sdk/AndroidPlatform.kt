package org.fedlens.sdk

import android.content.Context
import org.fedlens.sdk.engine.ExecuTorchRuntime
import org.fedlens.sdk.engine.ProgramRuntime
import org.fedlens.sdk.photo.BitmapDecoder
import org.fedlens.sdk.photo.PhotoDecoder
import org.fedlens.sdk.store.AndroidDatabase
import org.fedlens.sdk.store.Database
import java.io.File

/** Android: its own SQLite and its own decoders; programs by the `executorch-android` AAR that the app brings. */
public class AndroidPlatform(
    context: Context,
) : Platform {
    private val application = context.applicationContext

    // What is installed anew may bring another ExecuTorch, so that programs are tried again.
    override val runtime: ProgramRuntime by lazy {
        val installed = application.packageManager.getPackageInfo(application.packageName, 0)
        ExecuTorchRuntime("${installed.versionName}, installed at ${installed.lastUpdateTime}")
    }

    override val decoder: PhotoDecoder = BitmapDecoder()

    override fun openDatabase(file: File): Database = AndroidDatabase.open(file)
}
