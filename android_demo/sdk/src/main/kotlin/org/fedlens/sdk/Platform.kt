package org.fedlens.sdk

import org.fedlens.sdk.engine.ProgramRuntime
import org.fedlens.sdk.photo.PhotoDecoder
import org.fedlens.sdk.store.Database
import java.io.File

/** The services that a client needs from its system. On Android, use [AndroidPlatform]. */
public interface Platform {
    /** Runtime for the programs of bundles, in this process. */
    public val runtime: ProgramRuntime

    /**
     * Runtime for the programs of bundles, in another process; null: there is none here.
     *
     * @param mustBeIsolated True if nothing may run in a process that has the rights of the application.
     * @param forPredictions True for predictions, whose process is another than that of a training.
     */
    public fun separateRuntime(
        mustBeIsolated: Boolean,
        forPredictions: Boolean,
    ): ProgramRuntime? = null

    /** Decoder of photos. */
    public val decoder: PhotoDecoder

    /** A HEIC photo as JPEG, upright; null if this system cannot decode it. */
    public fun jpegOf(heic: ByteArray): ByteArray? = null

    /** True if there is a network that costs nothing; over others, a prediction fetches no model. */
    public val hasUnmeteredNetwork: Boolean get() = true

    /** Id of the application, for which publishers sign bundles; null: it has none. */
    public val applicationId: String? get() = null

    /** File that remembers what publishers withdrew, for all clients of the application; null: one in each folder. */
    public val floors: File? get() = null

    /**
     * Open an SQLite file, creating it if necessary.
     *
     * @throws StateException It cannot be opened.
     */
    public fun openDatabase(file: File): Database
}
