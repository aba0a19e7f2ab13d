package org.fedlens.app

import org.fedlens.sdk.AndroidPlatform
import org.fedlens.sdk.Platform
import org.fedlens.sdk.Policy
import org.fedlens.sdk.StateException
import org.fedlens.sdk.engine.ProgramRuntime
import org.fedlens.sdk.store.Database
import org.fedlens.sdk.store.FileSecret
import org.fedlens.sdk.store.SecretStore
import org.fedlens.sdk.store.Statements
import java.io.File

/** The app with replacements for what a desktop lacks: a runtime for programs, and the Android keystore. */
class TestApp : FedLensApp() {
    /** Nothing can be written, and so nothing is. */
    @Volatile internal var isDiskFull = false

    /** There is a network that costs nothing. */
    @Volatile internal var hasFreeNetwork = true

    /** Called in the client's thread before each step of a training. */
    @Volatile internal var onStep: () -> Unit = {}

    internal override var publishersFromLink = true

    internal override val platform: Platform by lazy {
        val android = AndroidPlatform(this)
        object : Platform by android {
            override val runtime: ProgramRuntime = DesktopRuntime { onStep() }

            override fun separateRuntime(
                mustBeIsolated: Boolean,
                forPredictions: Boolean,
            ): ProgramRuntime? = null

            override val hasUnmeteredNetwork get() = hasFreeNetwork

            override fun openDatabase(file: File): Database = Fillable(android.openDatabase(file))
        }
    }

    internal override val secrets: SecretStore get() = FileSecret(File(clientFolder, "secret"))

    /** Trains on fewer photos than the owner's policy asks for. */
    internal override val policy: Policy get() = super.policy.copy(leastTrainPhotos = 1, leastBatches = 1)

    internal override val patienceMs = 1_000L

    internal val jobs = PlayedJobs(this)

    /** The folder of the SDK's client. */
    internal val clientFolder: File get() = File(filesDir, "fedlens/client")

    /** The folder of the photo album. */
    internal val albumFolder: File get() = File(filesDir, "fedlens/album")

    /** The process ends and another one starts: only what is on the disk remains. */
    internal fun startAgain() {
        end()
        jobs.forget()
        begin()
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
