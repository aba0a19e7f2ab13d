package org.fedlens.app

import org.fedlens.sdk.AndroidPlatform
import org.fedlens.sdk.Platform
import org.fedlens.sdk.Policy
import org.fedlens.sdk.StateException
import org.fedlens.sdk.engine.ProgramRuntime
import org.fedlens.sdk.store.Database
import org.fedlens.sdk.store.FileSecret
import org.fedlens.sdk.store.Statements
import java.io.File

/** The app with replacements for what a desktop lacks: a runtime for programs, and the Android keystore. */
class TestApp : FedLensApp() {
    /** Nothing can be written, and so nothing is. */
    @Volatile internal var isDiskFull = false

    /** Called in the client's thread before each step of a training. */
    @Volatile internal var onStep: () -> Unit = {}

    internal override var publishersFromLink = true

    internal override fun surroundings(): Surroundings {
        val android = AndroidPlatform(this)
        val platform =
            object : Platform by android {
                override val runtime: ProgramRuntime = DesktopRuntime { onStep() }

                override fun separateRuntime(
                    mustBeIsolated: Boolean,
                    forPredictions: Boolean,
                ): ProgramRuntime? = null

                override val hasUnmeteredNetwork = true

                override fun openDatabase(file: File): Database = Fillable(android.openDatabase(file))
            }
        val secrets = { folder: File -> FileSecret(File(folder, "secret")) }
        val few = { policy: Policy -> policy.copy(leastTrainPhotos = 1, leastBatches = 1) }
        return Surroundings(platform, secrets, few, patienceMs = 1_000, longestIdleMs = 1_000)
    }

    private inner class Fillable(
        private val database: Database,
    ) : Database by database {
        override fun <T> transaction(block: (Statements) -> T): T {
            if (isDiskFull) throw StateException(StateException.Reason.NOT_WRITABLE, "the disk is full")
            return database.transaction(block)
        }
    }
}
