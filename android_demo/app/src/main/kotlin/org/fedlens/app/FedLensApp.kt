package org.fedlens.app

import android.app.Application
import android.os.Handler
import kotlinx.coroutines.CoroutineDispatcher
import kotlinx.coroutines.CoroutineScope
import kotlinx.coroutines.SupervisorJob
import kotlinx.coroutines.asCoroutineDispatcher
import kotlinx.coroutines.cancel
import org.fedlens.sdk.AndroidPlatform
import org.fedlens.sdk.ClientSettings
import org.fedlens.sdk.FedLens
import org.fedlens.sdk.Platform
import org.fedlens.sdk.Policy
import org.fedlens.sdk.Publishers
import org.fedlens.sdk.store.SecretStore
import java.io.File
import java.util.concurrent.Executor
import java.util.function.Function
import java.util.function.Supplier

/** The objects that live as long as the process; screens come and go. */
open class FedLensApp : Application() {
    /** The album, the client and the jobs of this process. */
    internal lateinit var fedlens: FedLens
    internal lateinit var settings: Settings
    internal lateinit var network: Network
    internal lateinit var photos: Photos
    internal lateinit var suggestions: Suggestions
    internal lateinit var learning: Learning
    internal lateinit var joining: Joining
    internal lateinit var erasing: Erasing

    /** The scope of work that outlives the screen that started it. */
    internal lateinit var scope: CoroutineScope

    /** The main thread. */
    internal val main: CoroutineDispatcher by lazy {
        val handler = Handler(mainLooper)
        Executor { handler.post(it) }.asCoroutineDispatcher()
    }

    /** True if a link may name the publishers whose bundles run here. An app of your own brings their keys instead. */
    internal open val publishersFromLink: Boolean = true

    // Tests, which have no phone, replace the following.
    internal open val platform: Platform by lazy { AndroidPlatform(this) }

    /** The store of the client's identity; null: the keystore. */
    internal open val secrets: SecretStore? = null

    /** The owner's decisions about what may leave the phone. */
    internal open val policy: Policy get() = settings.policy

    /** The time limit for a server to answer a request to be forgotten. */
    internal open val patienceMs = 20_000L

    override fun onCreate() {
        super.onCreate()
        // Android creates this class in the processes that run programs, too.
        if (AndroidPlatform.isProgramProcess()) return
        LearnNotification.makeChannel(this)
        begin()
    }

    override fun onTerminate() {
        end()
        super.onTerminate()
    }

    /** Create everything that does not outlive the process. */
    internal fun begin() {
        scope = CoroutineScope(SupervisorJob() + main)
        settings = Settings(this)
        fedlens =
            FedLens.create(this) {
                // The server is known once the owner has accepted an invitation.
                federation = Supplier { this@FedLensApp.settings.link?.let(::federation) }
                platform = this@FedLensApp.platform
                notification = Function { LearnNotification.of(this@FedLensApp, it.state) }
            }
        network = Network(this)
        photos = Photos(this)
        suggestions = Suggestions(this)
        learning = Learning(this)
        joining = Joining(this)
        erasing = Erasing(this)
        learning.schedule()
    }

    /** Cancel running work and close what is open. */
    internal fun end() {
        scope.cancel()
        photos.finish()
        fedlens.close()
    }

    private fun federation(link: EnrolmentLink): FedLens.Federation {
        val folder = File(filesDir, "fedlens/client")
        return FedLens.Federation(
            link.server,
            ClientSettings(
                publishers =
                    if (publishersFromLink && link.publishers.isNotEmpty()) {
                        Publishers.Keys { link.keys }
                    } else {
                        Publishers.TrustServer
                    },
                enrolmentToken = link.token,
                policy = ::policy,
                pins = link.pins,
                ca = link.pem?.let { pem -> File(folder.apply { mkdirs() }, "ca.pem").apply { writeText(pem) } },
                secrets = secrets,
                clientVersion = version,
            ),
        )
    }

    // The longer one is there from Android 9 on.
    @Suppress("DEPRECATION")
    private val version get() = packageManager.getPackageInfo(packageName, 0).versionCode.toLong()
}
