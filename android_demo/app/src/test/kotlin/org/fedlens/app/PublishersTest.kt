package org.fedlens.app

import org.fedlens.app.Phone.open
import org.fedlens.app.Phone.text
import org.fedlens.app.Phone.type
import org.fedlens.app.Phone.until
import org.junit.Assert.assertEquals
import org.junit.Assert.assertFalse
import org.junit.Assert.assertTrue
import org.junit.Test
import org.junit.runner.RunWith
import org.robolectric.RobolectricTestRunner
import org.robolectric.annotation.Config
import org.robolectric.annotation.GraphicsMode
import java.security.KeyPairGenerator
import java.security.spec.ECGenParameterSpec
import java.util.Base64

/** Keys of publishers in links, in an app that takes them and in one that does not. */
@RunWith(RobolectricTestRunner::class)
@Config(sdk = [34, 35], application = TestApp::class)
@GraphicsMode(GraphicsMode.Mode.NATIVE)
class PublishersTest {
    private val app get() = Phone.app
    private val key =
        KeyPairGenerator.getInstance("EC").run {
            initialize(ECGenParameterSpec("secp256r1"))
            "&publisher=" + Base64.getUrlEncoder().encodeToString(generateKeyPair().public.encoded)
        }

    @Test
    fun `who joins is told whom they trust`() {
        app.settings.hasConsent = true
        val enrol = open<EnrolActivity>().get()
        val link = "https://fl.example.org/join#token=t"
        enrol.type(R.id.link, link)
        assertEquals(app.getString(R.string.link_trusts_server), enrol.text(R.id.link_trust))
        enrol.type(R.id.link, link + key)
        val said = enrol.text(R.id.link_trust)
        assertEquals(app.getString(R.string.link_trusts_maker), said)
        assertTrue(said, said.endsWith("you trust whoever made the link (trust at first use)."))

        app.publishersFromLink = false
        enrol.type(R.id.link, link + key)
        val parts = listOf(R.string.link_key_ignored, R.string.link_trusts_server).map(app::getString)
        assertEquals(parts.joinToString(" "), enrol.text(R.id.link_trust))
    }

    @Test
    fun `with a key from the link nothing unsigned runs, and an app that ignores it trusts the server`() {
        PlayedServer().use { server ->
            Phone.join(server, key)
            // As many as the owner's policy asks for.
            repeat(8) { Phone.addPhoto("cat", it) }
            learn()
            assertTrue("${server.requests}", server.requests.last().endsWith("/failure"))
            assertTrue(server.requests.none { "/blobs/" in it })

            app.startAgain()
            app.publishersFromLink = false
            learn()
            assertEquals(1, server.updates.size)
        }
    }

    @Test
    fun `what publishers withdrew outlives another server, and nothing is left when everything is erased`() {
        PlayedServer().use { server ->
            Phone.join(server, key)
            learn()
            val floors = checkNotNull(app.platform.floors)
            assertTrue(floors.exists() && !floors.startsWith(app.clientFolder))
            app.erasing.startHereAnyway()
            until("erased") { app.erasing.state.value is Erasing.State.Done }
            assertFalse(floors.exists())
        }
    }

    private fun learn() {
        assertTrue(app.learning.start())
        until("the end of the round") { !app.learning.isRunning }
    }
}
