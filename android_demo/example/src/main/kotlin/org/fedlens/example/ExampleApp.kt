package org.fedlens.example

import android.app.Application
import org.fedlens.sdk.AndroidPlatform
import org.fedlens.sdk.ClientSettings
import org.fedlens.sdk.FedLens
import org.fedlens.sdk.Publisher
import org.fedlens.sdk.Publishers

/** Takes part in a federation, and learns at night. */
class ExampleApp : Application() {
    /** The album, the client and the jobs of this process. */
    lateinit var fedlens: FedLens
        private set

    override fun onCreate() {
        super.onCreate()
        // Android creates this class in the processes that run programs, too.
        if (AndroidPlatform.isProgramProcess()) return
        fedlens =
            FedLens.create(this) {
                server = "https://fl.example.org:8443"
                settings =
                    ClientSettings(
                        publishers = Publishers.Keys { listOf(Publisher.of("the content of publisher.pub")) },
                        enrolmentToken = "the content of trainer.token",
                    )
            }
        fedlens.schedule()
    }
}
