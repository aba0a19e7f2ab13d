package org.fedlens.example

import android.app.Application
import android.util.Log
import org.fedlens.sdk.AndroidPlatform
import org.fedlens.sdk.ClientSettings
import org.fedlens.sdk.FedLensClient
import org.fedlens.sdk.Publisher
import org.fedlens.sdk.Publishers
import org.fedlens.sdk.album.PhotoAlbum
import org.fedlens.sdk.store.KeystoreSecret
import java.io.File

/** Holds the one album and the one client of this process. */
class ExampleApp : Application() {
    private val platform by lazy { AndroidPlatform(this) }

    /** Photos with their labels, in the app's own storage. Reads the disk. */
    val album by lazy { PhotoAlbum.open(File(filesDir, "album"), platform::openDatabase) }

    /** Takes part in the federation with the photos of the album. */
    val client by lazy {
        FedLensClient(
            server = "https://fl.example.org:8443",
            folder = File(filesDir, "fedlens"),
            album = album,
            platform = platform,
            settings =
                ClientSettings(
                    publishers = Publishers.Keys { listOf(Publisher.of("the content of publisher.pub")) },
                    enrolmentToken = "the content of trainer.token",
                    secrets = KeystoreSecret(File(filesDir, "fedlens.secret")),
                ),
            onEvent = { Log.i("FedLens", "$it") },
        )
    }
}
