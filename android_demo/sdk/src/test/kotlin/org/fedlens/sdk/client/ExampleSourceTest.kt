package org.fedlens.sdk.client

import kotlinx.coroutines.runBlocking
import org.fedlens.sdk.EngineException
import org.fedlens.sdk.Event
import org.fedlens.sdk.album.Features
import org.fedlens.sdk.album.PhotoBytes
import org.junit.Assert.assertEquals
import org.junit.Assert.assertThrows
import org.junit.Assert.assertTrue
import org.junit.Rule
import org.junit.Test
import org.junit.rules.TemporaryFolder

/** Examples that an app brings from elsewhere than files. */
class ExampleSourceTest {
    @get:Rule
    val folder = TemporaryFolder()

    private fun round(change: ClientRun.() -> Unit): Pair<FakeServer, ClientRun> {
        val server = FakeServer()
        val run = ClientRun(server, folder.newFolder()).apply(change)
        run.client().use { client -> assertTrue(runBlocking { client.runOnce() } is Event.RoundReported) }
        return server to run
    }

    @Test
    fun `photos whose bytes come from elsewhere give the update that files give`() {
        val (files) = round { }
        val (bytes) =
            round {
                photos.mapTo(others) { PhotoBytes(it.entry, it.label, it.name, it.isTest, it.file::readBytes) }
                photos.clear()
            }
        assertEquals(files.updates.getValue(1).toList(), bytes.updates.getValue(1).toList())
    }

    @Test
    fun `features of an app's own are trained on, tested on and predicted from without a photo`() {
        val random = kotlin.random.Random(1)
        val (_, run) =
            round {
                photos.clear()
                repeat(20) { number ->
                    // Cats are high in the first number, dogs in the second.
                    val values = FloatArray(16) { if (it == number % 2) 1f else random.nextFloat() / 10 }
                    others += Features(listOf("cat", "dog")[number % 2], "$number", values, isTest = number >= 16)
                }
            }
        assertEquals(16 to 4, run.events<Event.RoundStarted>().single().run { trainPhotos to testPhotos })
        val evaluation = run.events<Event.RoundReported>().single().evaluations
        assertEquals(4L, evaluation.getValue("trained").count)
        assertEquals(0, run.events<Event.Embedded>().size)
        run.client().use { client ->
            val found = runBlocking { client.predict(FloatArray(16) { 1f }) }
            assertEquals(1.0, found.values.sum(), 1e-9)
            val error = assertThrows(EngineException::class.java) { runBlocking { client.predict(FloatArray(3)) } }
            assertEquals("the features must be 16 finite numbers; found 3, 0 of them not finite", error.message)
        }
    }
}
