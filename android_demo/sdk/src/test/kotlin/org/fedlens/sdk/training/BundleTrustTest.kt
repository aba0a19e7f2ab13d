package org.fedlens.sdk.training

import com.google.protobuf.ByteString
import kotlinx.coroutines.runBlocking
import org.fedlens.jvm.JdbcDatabase
import org.fedlens.proto.v1.Answer
import org.fedlens.proto.v1.Evaluation
import org.fedlens.proto.v1.LocalPlan
import org.fedlens.sdk.AssignmentException
import org.fedlens.sdk.Signer
import org.fedlens.sdk.store.Floors
import org.fedlens.sdk.toHex
import org.junit.Assert.assertEquals
import org.junit.Assert.assertThrows
import org.junit.Test
import java.io.File

/** Bundles that a client runs only if their publishers signed them for it. */
internal class BundleTrustTest : TestClients() {
    private val maker = Signer()
    private val stranger = Signer()
    private var publishers = listOf(maker.publisher)
    private var nowS = 1_000_000.0
    private var round = 0L

    private fun trusting(floors: File = File(folder.newFolder(), "floors.sqlite3")): TestClient {
        val opened = Floors.open(floors) { JdbcDatabase.open(it) }
        return client(trust = BundleTrust({ publishers }, setOf("org.example.camera", "zoo"), opened) { nowS })
    }

    private fun TestClient.train() {
        outbox.delivered(carryOut(wholePlan(), round = ++round))
    }

    private fun TestClient.evaluate() {
        val evaluation = Evaluation.newBuilder().setLabel("start").setValue("start")
        val plan =
            LocalPlan
                .newBuilder()
                .setFormat(1)
                .addInstructions(assembling("start", from("global")))
                .addEvaluations(evaluation)
        val assignment = assignment(plan.build(), ++round, answer = Answer.ANSWER_EVALUATION)
        outbox.delivered(runBlocking { assignments.carryOut(assignment, onlyTest = true) })
    }

    private fun TestClient.predict() {
        predict(model(), album.photos().photos[0].file)
    }

    private fun TestClient.embed() {
        runBlocking { assignments.embedNew(model(), onlyTest = false) }
    }

    private fun TestClient.listClasses() {
        runBlocking { predictor.manifest(model()) }
    }

    private val trainings = listOf<TestClient.() -> Unit>({ train() }, { evaluate() })
    private val others = listOf<TestClient.() -> Unit>({ predict() }, { embed() }, { listClasses() })

    private fun TestClient.assertRefused(
        why: String,
        uses: List<TestClient.() -> Unit> = trainings + others,
    ) {
        for (use in uses) {
            val error = assertThrows(why, AssignmentException::class.java) { use() }
            assertEquals(AssignmentException.Reason.POLICY, error.reason)
            assertEquals("this client runs what its publishers signed: $why", error.message)
        }
    }

    private fun Signer.shown() = publisher.id.toHex().take(12)

    @Test
    fun `a bundle that a publisher signed for the app, for a federation or for any app is used for everything`() {
        for (audience in listOf("org.example.camera", "zoo", null)) {
            val client = trusting()
            client.statement = maker.sign(client.bundle.id, audience = audience)
            for (use in trainings + others) client.use()
        }
    }

    @Test
    fun `what no publisher signed for this client is refused for every use and not even fetched`() {
        val client = trusting()
        val id = client.bundle.id
        val other = ByteArray(32)
        val (mine, theirs) = maker.shown() to stranger.shown()
        val refused =
            mapOf(
                ByteString.EMPTY to
                    "nobody has signed bundle ${id.toHex().take(12)}; its publisher must, with `fedlens sign`",
                stranger.sign(id) to "the bundle is published by $theirs, trusted is $mine",
                stranger.sign(id, named = maker) to "the signature is not that of the publisher who is named",
                maker.sign(other) to "the statement is about another bundle",
                maker.sign(id, audience = "org.example.other") to
                    "the bundle is for org.example.other; this client is org.example.camera, zoo",
            )
        for ((statement, why) in refused) {
            client.statement = statement
            client.assertRefused(why)
        }
        assertEquals(emptyList<ByteString>(), client.server.fetched)
    }

    @Test
    fun `a withdrawn serial is refused for every use, also after a restart and from another server`() {
        val floors = File(folder.newFolder(), "floors.sqlite3")
        val first = trusting(floors)
        first.statement = maker.sign(first.bundle.id, serial = 5, floor = 5)
        first.predict()
        // Each is a client with a state of its own.
        for (client in listOf(first, trusting(floors))) {
            client.statement = maker.sign(client.bundle.id, serial = 4)
            client.assertRefused("bundle 'animals' has serial 4; its publisher withdrew those below 5")
            client.statement = maker.sign(client.bundle.id, serial = 5)
            client.train()
        }
    }

    @Test
    fun `a key that is left out between two rounds is revoked`() {
        val client = trusting()
        client.statement = maker.sign(client.bundle.id)
        publishers = listOf(stranger.publisher, maker.publisher)
        client.train()
        publishers = listOf(stranger.publisher)
        client.assertRefused("the bundle is published by ${maker.shown()}, trusted is ${stranger.shown()}")
        publishers = emptyList()
        client.assertRefused("the bundle is published by ${maker.shown()}, trusted is nobody")
    }

    @Test
    fun `a statement that has ended stops training, and predictions by what was used before go on`() {
        val client = trusting()
        client.statement = maker.sign(client.bundle.id, notAfter = 1_000_000)
        // The clock may be a day fast.
        nowS = 1_000_000 + 2 * 86_400.0
        client.assertRefused("the publisher's statement about the bundle ended 2 days ago")
        nowS = 1_000_000 + 86_400.0
        client.predict()
        nowS = 1_000_000 + 86_401.0
        client.assertRefused("the publisher's statement about the bundle ended 1 days ago", trainings)
        for (use in others) client.use()
    }
}
