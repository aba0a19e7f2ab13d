package org.fedlens.sdk

import org.fedlens.sdk.engine.ProgramRuntime
import org.fedlens.sdk.photo.PhotoDecoder
import org.fedlens.sdk.store.Database
import java.io.File

/** What a client needs of the system that it runs on. On Android it is an [AndroidPlatform]. */
public interface Platform {
    /** Runs the programs of bundles. */
    public val runtime: ProgramRuntime

    /** Decodes photos. */
    public val decoder: PhotoDecoder

    /**
     * Opens an SQLite file, making it where there is none.
     *
     * @throws StateException It cannot be opened.
     */
    public fun openDatabase(file: File): Database
}
