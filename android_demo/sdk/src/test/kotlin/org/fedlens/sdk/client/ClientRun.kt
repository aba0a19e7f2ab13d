package org.fedlens.sdk.client

import org.fedlens.jvm.JdbcDatabase
import org.fedlens.sdk.AGREED
import org.fedlens.sdk.AlbumEntry
import org.fedlens.sdk.Bundle
import org.fedlens.sdk.ClientConfiguration
import org.fedlens.sdk.ClientSettings
import org.fedlens.sdk.ClientState
import org.fedlens.sdk.Event
import org.fedlens.sdk.FedLensClient
import org.fedlens.sdk.KeyedHash
import org.fedlens.sdk.Platform
import org.fedlens.sdk.Publishers.TrustServer
import org.fedlens.sdk.Vectors
import org.fedlens.sdk.album.Example
import org.fedlens.sdk.album.Examples
import org.fedlens.sdk.album.Photo
import org.fedlens.sdk.engine.Engine
import org.fedlens.sdk.engine.ProgramRuntime
import org.fedlens.sdk.photo.PhotoDecoder
import org.fedlens.sdk.photo.PixelSource
import org.fedlens.sdk.sha256
import org.fedlens.sdk.store.Database
import java.io.File
import javax.imageio.ImageIO

/** The common parts of a test's clients: a server, a folder, photos, and a list of all events. */
internal class ClientRun(
    val server: FakeServer,
    private val folder: File,
    private val floors: File? = null,
) {
    val events = ArrayList<Event>()
    val states = ArrayList<ClientState>()

    /** The recorded waits, in milliseconds; nothing really waits. */
    val pauses = ArrayList<Long>()
    var duringPause: suspend () -> Unit = {}
    val photos = vectorPhotos().toMutableList()

    /** Examples that are no photos in files. */
    val others = ArrayList<Example>()
    var engineOf: (Bundle) -> Engine = ::SoftmaxEngine
    var onEvent: (Event) -> Unit = {}
    var hasUnmeteredNetwork = true

    /** Report a repeated request, as a transport does; call it within a trouble of the server. */
    lateinit var repeated: () -> Unit

    inline fun <reified E : Event> events(): List<E> = events.filterIsInstance<E>()

    fun client(settings: ClientSettings = ClientSettings(TrustServer, FakeServer.TOKEN, { AGREED })): FedLensClient {
        val configuration =
            ClientConfiguration(
                "https://fl.example.org",
                folder,
                { Examples(photos + others) },
                Desktop(floors),
                settings,
                transportOf = { secret, reporter ->
                    repeated = { reporter.report(Event.Retrying("no network", 1_000, 1)) }
                    server.transport(secret)
                },
                engineOf = { bundle, _, _, _ -> engineOf(bundle) },
                pause = {
                    pauses += it
                    duringPause()
                },
            )
        return FedLensClient({ configuration }) { event ->
            events += event
            onEvent(event)
        }
    }

    private inner class Desktop(
        override val floors: File?,
    ) : Platform {
        override val applicationId get() = APPLICATION

        override val hasUnmeteredNetwork get() = this@ClientRun.hasUnmeteredNetwork

        override val runtime: ProgramRuntime get() = error("the engine of these tests needs none")

        override val decoder =
            PhotoDecoder { content ->
                val image = ImageIO.read(content.inputStream())
                val pixels = image.getRGB(0, 0, image.width, image.height, null, 0, image.width)
                PixelSource.of(image.width, image.height, pixels)
            }

        override fun openDatabase(file: File): Database = JdbcDatabase.open(file)
    }

    companion object {
        const val APPLICATION = "org.example.camera"

        /** 15 photos of three classes; one is there twice. */
        fun vectorPhotos(): List<Photo> {
            val copies = HashMap<String, Int>()
            val files = Vectors.file("plan/album").walk().filter { it.isFile }
            return files.sortedBy { it.path }.toList().map { file ->
                val digest = sha256(file.readBytes())
                val copy = copies.merge(digest.contentToString(), 1, Int::plus)!! - 1
                Photo(AlbumEntry(digest, copy), file.parentFile.name, file, KeyedHash.isTestPhoto(digest))
            }
        }
    }
}
