package org.fedlens.jvm

import org.fedlens.sdk.Platform
import org.fedlens.sdk.engine.ProgramRuntime
import org.fedlens.sdk.photo.PhotoDecoder
import org.fedlens.sdk.store.Database
import java.io.File

/** A desktop JVM: SQLite by JDBC, photos by ImageIO, programs by ExecuTorch's own runtime through JNI. */
public class JvmPlatform : Platform {
    override val runtime: ProgramRuntime by lazy(::JniRuntime)

    override val decoder: PhotoDecoder = ImageIoDecoder()

    override fun openDatabase(file: File): Database = JdbcDatabase.open(file)
}
