package org.fedlens.sdk.client

import kotlinx.coroutines.runBlocking
import org.fedlens.proto.v1.Keep
import org.fedlens.sdk.AssignmentException
import org.fedlens.sdk.ClientSettings
import org.fedlens.sdk.Event
import org.fedlens.sdk.FedLensClient
import org.fedlens.sdk.Policy
import org.fedlens.sdk.Publishers.TrustServer
import org.fedlens.sdk.album.Photo
import org.fedlens.sdk.blob.Blob
import org.fedlens.sdk.blob.BlobWriter
import org.fedlens.sdk.blob.FloatTensor
import org.fedlens.sdk.model.Adoption
import org.fedlens.sdk.model.TestResult
import org.fedlens.sdk.sha256
import org.fedlens.sdk.toHex
import org.fedlens.sdk.training.from
import org.fedlens.sdk.training.starting
import org.junit.Assert.assertEquals
import org.junit.Assert.assertFalse
import org.junit.Assert.assertNotEquals
import org.junit.Assert.assertNull
import org.junit.Assert.assertThrows
import org.junit.Assert.assertTrue
import org.junit.Rule
import org.junit.Test
import org.junit.rules.TemporaryFolder
import org.junit.rules.Timeout
import java.io.File

/** The choice of the model that predicts, by rule and by the app. */
class ModelsTest {
    @get:Rule
    val folder = TemporaryFolder()

    @get:Rule
    val timeout: Timeout = Timeout.seconds(120)

    private val server = FakeServer(rounds = 0)
    private val home by lazy { folder.newFolder("client") }
    private val run by lazy { ClientRun(server, home).apply { photos.replaceAll(::divided) } }
    private val photo get() = run.photos.first().file

    /** Test photos are two cats and one dog. */
    private fun divided(photo: Photo): Photo {
        val isTest = "${photo.label}/${photo.file.name}" in setOf("cat/00.png", "cat/03.png", "dog/01.png")
        return Photo(photo.entry, photo.label, photo.file, isTest)
    }

    private fun settings(adoption: Adoption) = ClientSettings(TrustServer, FakeServer.TOKEN, adoption = adoption)

    private fun client(adoption: Adoption = Adoption.ALWAYS) = run.client(settings(adoption))

    /** A model that takes every photo for one of the class [label]; [bias] tells several apart. */
    private fun weights(
        label: String,
        bias: Float = 1f,
    ): ByteArray {
        val initial = server.bundle.manifest.initial.toByteArray()
        val tensors = Blob.open(server.bundle.part(initial), initial).tensors
        val biases = FloatArray(3) { if (server.bundle.manifest.getClassNames(it) == label) bias else 0f }
        val nothing = FloatTensor.of(tensors.getValue(SoftmaxEngine.WEIGHT).shape, FloatArray(18))
        val changed = mapOf(SoftmaxEngine.BIAS to FloatTensor.of(listOf(3), biases), SoftmaxEngine.WEIGHT to nothing)
        return BlobWriter.encode(tensors + changed)
    }

    private fun FedLensClient.announce(
        label: String,
        bias: Float = 1f,
    ) {
        server.model = weights(label, bias)
        runBlocking { checkIn() }
    }

    private fun FedLensClient.predicted(): String = runBlocking { predict(photo) }.maxBy { it.value }.key

    private fun FedLensClient.now() = runBlocking { models() }

    @Test
    fun `before the first check-in there is no model`() {
        client().use { client ->
            val models = client.now()
            assertEquals(listOf(null, null, null, null), models.run { listOf(task, inUse, newer, previous) })
            assertNull(runBlocking { client.testModels() }.task)
        }
    }

    @Test
    fun `a model is tested on the phone's own photos without a round, and nothing is sent`() {
        client().use { client ->
            client.announce("cat")
            client.predicted()
            val asked = server.calls.size
            val model = checkNotNull(runBlocking { client.testModels() }.inUse)
            assertEquals(TestResult(correct = 2, count = 3), model.result)
            assertEquals(listOf("cat", "dog", "emu"), model.classNames)
            assertTrue(checkNotNull(model.inUseSinceMs) >= model.knownSinceMs)
            assertEquals(asked, server.calls.size)
        }
        client().use { client -> assertEquals(TestResult(2, 3), client.now().inUse?.result) }
    }

    @Test
    fun `an old and a new model are seen side by side before the app adopts the new one`() {
        client(Adoption.WHEN_TOLD).use { client ->
            client.announce("cat")
            assertEquals("cat", client.predicted())
            client.announce("dog")
            assertEquals("cat", client.predicted())
            val models = runBlocking { client.testModels() }
            val (old, new) = checkNotNull(models.inUse) to checkNotNull(models.newer)
            assertEquals(listOf(TestResult(2, 3), TestResult(1, 3)), listOf(old.result, new.result))
            assertEquals(listOf(1, 2), listOf(new.gainsOver(old), old.gainsOver(new)))
            assertEquals("dog", runBlocking { client.predict(photo, new) }.maxBy { it.value }.key)
            assertEquals("cat", client.predicted())
            assertEquals(0, run.events<Event.ModelAdopted>().size)

            runBlocking { client.adopt(new) }
            assertEquals("dog", client.predicted())
            assertEquals(listOf(Event.ModelAdopted(FakeServer.TASK)), run.events<Event.ModelAdopted>())
            assertEquals(old.id, client.now().previous?.id)
            assertNull(client.now().newer)
        }
    }

    @Test
    fun `the better model is kept by the phone's own photos, and of equal ones the older`() {
        client(Adoption.IF_BETTER).use { client ->
            // Of three test photos one is a dog, two are cats, none is an emu.
            val expected = listOf("dog" to 1f, "emu" to 1f, "dog" to 2f, "cat" to 1f, "cat" to 2f, "dog" to 1f)
            val inUse = listOf("dog", "dog", "dog", "cat", "cat", "cat")
            val chosen =
                expected.map { (label, bias) ->
                    client.announce(label, bias)
                    client.predicted()
                }
            assertEquals(inUse, chosen)
            assertEquals(1, run.events<Event.ModelAdopted>().size)
        }
    }

    @Test
    fun `without test photos the older model stays`() {
        run.photos.removeAll { it.isTest }
        client(Adoption.IF_BETTER).use { client ->
            client.announce("emu")
            assertEquals("emu", client.predicted())
            client.announce("cat")
            assertEquals("emu", client.predicted())
            assertEquals(TestResult(0, 0), client.now().newer?.result)
        }
    }

    @Test
    fun `a roll-back stays after newer models and a restart, until the newest is adopted`() {
        client().use { client ->
            client.announce("cat")
            client.predicted()
            client.announce("dog")
            assertEquals("dog", client.predicted())
            runBlocking { client.adopt(checkNotNull(client.now().previous)) }
            assertEquals("cat", client.predicted())
            client.announce("emu")
            assertEquals("cat", client.predicted())
        }
        client().use { client ->
            runBlocking { client.fetchModel() }
            assertEquals("cat", client.predicted())
            runBlocking { client.adopt(checkNotNull(client.now().newer)) }
            assertEquals("emu", client.predicted())
            client.announce("dog")
            assertEquals("dog", client.predicted())
        }
    }

    @Test
    fun `a model that has been replaced cannot be adopted`() {
        client(Adoption.WHEN_TOLD).use { client ->
            client.announce("cat")
            client.predicted()
            client.announce("dog")
            val gone = checkNotNull(client.now().newer)
            client.announce("emu")
            val error = assertThrows(AssignmentException::class.java) { runBlocking { client.adopt(gone) } }
            assertEquals("model ${gone.id} has been replaced; ask for models() again", error.message)
        }
    }

    @Test
    fun `the chosen model is not evicted from a small cache, also after a restart`() {
        client().use { client ->
            client.announce("cat")
            client.predicted()
        }
        val parts = File(home, "cache/parts")
        // Room for one more model.
        val room = parts.walk().sumOf { if (it.isFile) it.length() else 0 } + server.model.size
        val small = ClientSettings(TrustServer, FakeServer.TOKEN, maxCacheBytes = room, adoption = Adoption.WHEN_TOLD)
        val chosen = File(parts, sha256(server.model).toHex())
        for (start in 1..2) {
            run.client(small).use { client ->
                for (bias in 1..4) {
                    client.announce("dog", start + bias / 10f)
                    runBlocking { client.fetchModel() }
                }
                run.hasUnmeteredNetwork = false
                assertEquals("cat", client.predicted())
                run.hasUnmeteredNetwork = true
            }
            assertTrue(chosen.isFile)
        }
        val dogs = (1..2).flatMap { start -> (1..4).map { weights("dog", start + it / 10f) } }
        assertEquals(1, dogs.count { File(parts, sha256(it).toHex()).isFile })
    }

    @Test
    fun `client state that was just trained makes a newer model, and the one before can be had back`() {
        val plan =
            FakeServer
                .trainingPlan(epochs = 5)
                .toBuilder()
                .starting(from("global", "mine"))
                .addKeeps(Keep.newBuilder().setState("mine").setValue("trained"))
        val server = FakeServer(plan.build(), rounds = 2)
        val run = ClientRun(server, folder.newFolder("personal"))
        val policy = { Policy(allowTables = setOf("state/mine")) }
        val settings = ClientSettings(TrustServer, FakeServer.TOKEN, policy, adoption = Adoption.WHEN_TOLD)
        run.client(settings).use { client ->
            runBlocking {
                client.checkIn()
                val first = client.predict(photo)
                client.runOnce()
                assertEquals(first, client.predict(photo))
                val trained = checkNotNull(client.models().newer)
                val second = client.predict(photo, trained)
                assertNotEquals(first, second)
                client.adopt(trained)
                assertEquals(second, client.predict(photo))

                client.runOnce()
                assertEquals(second, client.predict(photo))
                val previous = checkNotNull(client.models().previous)
                client.adopt(previous)
                assertEquals(first, client.predict(photo))
            }
        }
    }

    @Test
    fun `what the phone sends does not depend on the model in use`() {
        fun sent(
            adoption: Adoption,
            between: suspend (FedLensClient) -> Unit,
        ): FakeServer {
            val server = FakeServer(rounds = 3)
            ClientRun(server, folder.newFolder()).client(settings(adoption)).use { client ->
                runBlocking {
                    repeat(3) {
                        assertTrue(client.runOnce() is Event.RoundReported)
                        between(client)
                    }
                }
            }
            return server
        }

        val plain = sent(Adoption.ALWAYS) { }
        val choosing =
            listOf(
                sent(Adoption.IF_BETTER) { it.testModels() },
                sent(Adoption.WHEN_TOLD) { it.checkIn() },
                sent(Adoption.ALWAYS) { client -> client.models().previous?.let { client.adopt(it) } },
            )
        for (server in choosing) {
            assertEquals(plain.updates.mapValues { it.value.toList() }, server.updates.mapValues { it.value.toList() })
            assertFalse(server.calls.any { it == "evaluation" })
        }
    }
}
