package org.fedlens.app

import org.fedlens.sdk.AndroidPlatform
import org.fedlens.sdk.Platform
import org.fedlens.sdk.engine.ProgramRuntime
import org.fedlens.sdk.store.FileSecret
import java.io.File

/** The app with what a desktop lacks replaced: a runtime for programs, and the Android keystore. */
class TestApp : FedLensApp() {
    internal override fun surroundings(): Surroundings {
        val android = AndroidPlatform(this)
        val platform =
            object : Platform by android {
                override val runtime: ProgramRuntime = DesktopRuntime()
            }
        return Surroundings(platform, { folder -> FileSecret(File(folder, "secret")) }, patienceMs = 1_000)
    }
}
