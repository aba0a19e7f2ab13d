package org.fedlens.example

import android.app.Application
import org.fedlens.sdk.AndroidPlatform
import org.fedlens.sdk.ClientSettings
import org.fedlens.sdk.FedLens
import org.fedlens.sdk.Policy
import org.fedlens.sdk.Publisher
import org.fedlens.sdk.Publishers

/** Takes part in a federation, and learns at night, once its user has agreed. */
class ExampleApp : Application() {
    /** The album, the client and the jobs of this process. */
    lateinit var fedlens: FedLens
        private set
    private val answers by lazy { getSharedPreferences("answers", MODE_PRIVATE) }

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
                        // Read on a thread of the client, before each round.
                        policy = {
                            val agreed = answers.getBoolean(AGREED, false)
                            Policy(upload = agreed, answerEvaluation = agreed)
                        },
                    )
            }
    }

    /** Note that the user has agreed, and learn from now on, also after a restart of the phone. */
    fun agree() {
        answers.edit().putBoolean(AGREED, true).apply()
        fedlens.schedule()
    }

    private companion object {
        const val AGREED = "agreed"
    }
}
