package org.fedlens.jvm

import org.fedlens.sdk.Platform
import org.fedlens.sdk.engine.ProgramRuntime
import org.fedlens.sdk.photo.PhotoDecoder
import org.fedlens.sdk.store.Database
import java.io.File

/**
 * The platform of a desktop JVM: SQLite through JDBC, photos through ImageIO, programs through JNI and ExecuTorch's
 * runtime.
 */
public class JvmPlatform(
    override val floors: File? = null,
) : Platform {
    override val runtime: ProgramRuntime by lazy(::JniRuntime)

    override val decoder: PhotoDecoder = ImageIoDecoder()

    override fun openDatabase(file: File): Database = JdbcDatabase.open(file)
}
