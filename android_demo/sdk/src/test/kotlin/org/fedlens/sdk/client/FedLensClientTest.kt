package org.fedlens.sdk.client

import kotlinx.coroutines.CompletableDeferred
import kotlinx.coroutines.CoroutineStart
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.async
import kotlinx.coroutines.awaitCancellation
import kotlinx.coroutines.cancelAndJoin
import kotlinx.coroutines.launch
import kotlinx.coroutines.runBlocking
import org.fedlens.jvm.JdbcDatabase
import org.fedlens.proto.v1.Answer
import org.fedlens.proto.v1.Capabilities
import org.fedlens.proto.v1.CheckInResponse
import org.fedlens.proto.v1.ClassCounts
import org.fedlens.proto.v1.ClientRole
import org.fedlens.proto.v1.FailureReason
import org.fedlens.proto.v1.LocalPlan
import org.fedlens.proto.v1.Statistic
import org.fedlens.proto.v1.Wait
import org.fedlens.proto.v1.WaitReason
import org.fedlens.sdk.AGREED
import org.fedlens.sdk.AssignmentException
import org.fedlens.sdk.ClientSettings
import org.fedlens.sdk.ClientState
import org.fedlens.sdk.EngineException
import org.fedlens.sdk.Event
import org.fedlens.sdk.FedLensException
import org.fedlens.sdk.Publishers.TrustServer
import org.fedlens.sdk.StateException
import org.fedlens.sdk.TransportException
import org.fedlens.sdk.client.FakeServer.Companion.TASK
import org.fedlens.sdk.client.FakeServer.Companion.TOKEN
import org.fedlens.sdk.client.FakeServer.Companion.receipt
import org.fedlens.sdk.client.FakeServer.Companion.refused
import org.fedlens.sdk.client.FakeServer.Companion.trainingPlan
import org.fedlens.sdk.engine.Engine
import org.fedlens.sdk.store.Journal
import org.fedlens.sdk.store.JournalEntry
import org.fedlens.sdk.store.StateFolder
import org.junit.Assert.assertArrayEquals
import org.junit.Assert.assertEquals
import org.junit.Assert.assertNotEquals
import org.junit.Assert.assertThrows
import org.junit.Assert.assertTrue
import org.junit.Assert.fail
import org.junit.Rule
import org.junit.Test
import org.junit.rules.TemporaryFolder
import org.junit.rules.Timeout

class FedLensClientTest {
    @get:Rule
    val folder = TemporaryFolder()

    @get:Rule
    val timeout: Timeout = Timeout.seconds(60)

    private fun clientOf(server: FakeServer) = ClientRun(server, folder.root)

    @Test
    fun `a client takes part until every task has ended`() {
        val run = clientOf(FakeServer(rounds = 3))
        run.client().use { client ->
            runBlocking { client.run() }
            assertEquals(ClientState.Finished, client.state.value)
        }
        assertEquals(listOf(1L, 2L, 3L), run.events<Event.RoundReported>().map { it.round })
        assertEquals(Event.TasksFinished, run.events.last())
        assertEquals(1, run.server.count("enrol"))
        val (train, test) = run.photos.partition { !it.isTest }
        assertEquals(train.size.toLong(), run.server.update(1).header.numExamples)
        assertEquals(
            Event.RoundStarted(TASK, 1, train.size, test.size),
            run.events<Event.RoundStarted>().first(),
        )
    }

    @Test
    fun `the test photos are evaluated before and after training`() {
        val run = clientOf(FakeServer())
        val outcome = run.client().use { runBlocking { it.runOnce() } } as Event.RoundReported
        val (start, end) = outcome.evaluations.getValue("start") to outcome.evaluations.getValue("trained")
        val testPhotos = run.photos.count { it.isTest }.toLong()
        assertEquals(listOf(testPhotos, testPhotos), listOf(start.count, end.count))
        assertNotEquals(start.loss, end.loss, 1e-6)
    }

    @Test
    fun `every state has its turn, and the last one stays`() {
        val run = clientOf(FakeServer())
        val callbacks = Recorder()
        run.client().use { client ->
            assertEquals(ClientState.Idle, client.state.value)
            client.start(callbacks)
            callbacks.awaitEnd()
            assertEquals(null, callbacks.error)
        }
        val kinds = callbacks.states.map { it::class }.distinct()
        assertEquals(
            listOf(
                ClientState.Enrolling::class,
                ClientState.CheckingIn::class,
                ClientState.Preparing::class,
                ClientState.Training::class,
                ClientState.Sending::class,
                ClientState.Reported::class,
                ClientState.Finished::class,
            ),
            kinds,
        )
        assertEquals(run.events, callbacks.events)
        assertEquals(ClientState.Finished, callbacks.states.last())
    }

    @Test
    fun `a result in the outbox is sent by the next client and not trained again`() {
        val run = clientOf(FakeServer())
        run.server.trouble("update") { receipt(ByteArray(3)) }
        run.client().use { assertReason(TransportException.Reason.BAD_ANSWER) { it.runOnce() } }
        val trained = run.events<Event.Trained>().size
        val outcome =
            run.client().use { client ->
                assertEquals(JournalEntry.Outcome.WAITING, client.journal.entries().first().outcome)
                runBlocking { client.runOnce() }
            }
        assertTrue(outcome is Event.RoundReported)
        assertEquals(trained, run.events<Event.Trained>().size)
        assertEquals(1, run.server.count("check-in"))
        assertEquals(setOf(1L), run.server.updates.keys)
    }

    @Test
    fun `a refused update is dropped, and the same assignment again is not hurried`() {
        val run = clientOf(FakeServer(rounds = 2))
        run.server.trouble("update") { throw refused("round-closed", "too late") }
        run.client().use { client ->
            val first = runBlocking { client.runOnce() }
            val why = "the server refuses (round-closed): too late"
            assertEquals(Event.RoundRefused(TASK, 1, "round-closed", why), first)
            assertEquals(ClientState.Refused("round-closed", why, TASK, 1), client.state.value)
            assertEquals(emptyList<Long>(), run.pauses)
            assertTrue(runBlocking { client.runOnce() } is Event.RoundReported)
        }
        assertEquals(listOf(5_000L), run.pauses)
    }

    @Test
    fun `an owner who was asked nothing gives nothing`() {
        val run = clientOf(FakeServer())
        run.client(ClientSettings(TrustServer, TOKEN)).use { client ->
            val outcome = runBlocking { client.runOnce() } as Event.RoundFailed
            assertEquals("this client's policy: trained weights are not uploaded", outcome.detail)
        }
        assertEquals(0, run.server.updates.size)
        assertEquals(0, run.server.count("blob"))
    }

    @Test
    fun `a policy is stronger than an assignment, and read anew for each`() {
        val statistic = Statistic.newBuilder().setClassCounts(ClassCounts.getDefaultInstance())
        val run = clientOf(FakeServer(trainingPlan().toBuilder().addStatistics(statistic).build(), rounds = 2))
        var policy = AGREED.copy(answerClassCounts = false)
        run.client(ClientSettings(TrustServer, TOKEN, policy = { policy })).use { client ->
            val outcome = runBlocking { client.runOnce() } as Event.RoundFailed
            assertEquals(AssignmentException.Reason.POLICY, outcome.reason)
            assertEquals(0, run.server.count("blob"))
            policy = AGREED
            assertTrue(runBlocking { client.runOnce() } is Event.RoundReported)
        }
        assertEquals(FailureReason.FAILURE_REASON_POLICY, run.server.failures.getValue(1).reason)
    }

    @Test
    fun `a blob that is gone means another check-in, and then a failure`() {
        val run = clientOf(FakeServer())
        repeat(2) { run.server.trouble("blob") { throw refused("unknown", "no such blob") } }
        val outcome = run.client().use { runBlocking { it.runOnce() } }
        assertTrue(outcome is Event.RoundFailed)
        assertEquals(2, run.server.count("check-in"))
        assertEquals(FailureReason.FAILURE_REASON_INTERNAL, run.server.failures.getValue(1).reason)
    }

    @Test
    fun `waiting is reported, and lasts as long as the server says`() {
        val run = clientOf(FakeServer())
        val wait = Wait.newBuilder().setRetryAfterMs(1_000).setReason(WaitReason.WAIT_REASON_POPULATION)
        run.server.trouble("check-in") { CheckInResponse.newBuilder().setWait(wait).build() }
        run.client().use { runBlocking { it.runOnce() } }
        assertEquals(listOf(Event.Waiting("population", 1_000)), run.events<Event.Waiting>())
        assertTrue(run.pauses.single() in 1_000..1_100)
    }

    @Test
    fun `a check-in says how many train photos there are, which task, and how long it may be held`() {
        val run = clientOf(FakeServer())
        val settings = ClientSettings(TrustServer, TOKEN, { AGREED }, task = TASK, holdMs = 1_234, clientVersion = 7)
        run.client(settings).use { runBlocking { it.runOnce() } }
        val request = run.server.checkIns.single()
        assertEquals(run.photos.count { !it.isTest }.toLong(), request.numExamples)
        assertEquals(TASK, request.task)
        assertEquals(1_234, request.holdMs)
        assertEquals(7, request.clientVersion)
    }

    @Test
    fun `a permission that is taken back during a training holds for its result`() {
        val run = clientOf(FakeServer())
        var policy = AGREED
        run.onEvent = { if (it is Event.Trained) policy = AGREED.copy(upload = false) }
        run.client(ClientSettings(TrustServer, TOKEN, policy = { policy })).use { client ->
            val outcome = runBlocking { client.runOnce() } as Event.RoundFailed
            assertEquals(AssignmentException.Reason.POLICY, outcome.reason)
        }
        assertEquals(0, run.server.count("update"))
    }

    @Test
    fun `with fewer photos than the policy trains on a check-in offers none`() {
        val run = clientOf(FakeServer())
        val train = run.photos.count { !it.isTest }
        for (least in listOf(train, train + 1)) {
            val settings = ClientSettings(TrustServer, TOKEN, policy = { AGREED.copy(leastTrainPhotos = least) })
            run.client(settings).use { runBlocking { it.runOnce() } }
        }
        assertEquals(listOf(train.toLong(), 0L), run.server.checkIns.map { it.numExamples })
    }

    @Test
    fun `an evaluator evaluates all its photos and trains on none`() {
        val plan =
            LocalPlan
                .newBuilder()
                .setFormat(1)
                .addInstructions(trainingPlan().getInstructions(0))
                .addEvaluations(trainingPlan().getEvaluations(0))
                .build()
        val run =
            clientOf(FakeServer(plan, role = ClientRole.CLIENT_ROLE_EVALUATOR, answer = Answer.ANSWER_EVALUATION))
        val outcome = run.client().use { runBlocking { it.runOnce() } } as Event.RoundReported
        assertEquals(run.photos.size.toLong(), outcome.evaluations.getValue("start").count)
        assertEquals(0L, run.server.checkIns.single().numExamples)
        assertEquals(setOf(1L), run.server.evaluations.keys)
    }

    @Test
    fun `a wrong enrolment token ends with the server's reason`() {
        val run = clientOf(FakeServer())
        run.client(ClientSettings(TrustServer, "no")).use { client ->
            val error = assertReason(TransportException.Reason.REFUSED) { client.run() }
            assertTrue(error.message, "this enrolment token is not known" in error.message.orEmpty())
            assertEquals(ClientState.Refused("forbidden", error.message.orEmpty()), client.state.value)
            assertEquals(JournalEntry.Outcome.REFUSED, client.journal.entries().single().outcome)
        }
    }

    @Test
    fun `a client without a token says that it needs one`() {
        val run = clientOf(FakeServer())
        run.client(ClientSettings(TrustServer, policy = { AGREED })).use { client ->
            assertReason(StateException.Reason.NOT_ENROLLED) { client.run() }
            assertEquals("not_enrolled", (client.state.value as ClientState.Failed).reason)
        }
        assertEquals(emptyList<String>(), run.server.calls)
    }

    @Test
    fun `an enrolled client needs no token any more, unless it trains other models`() {
        val run = clientOf(FakeServer(rounds = 2))
        run.client().use { runBlocking { it.runOnce() } }
        run.client(ClientSettings(TrustServer, policy = { AGREED })).use { runBlocking { it.runOnce() } }
        assertEquals(1, run.server.count("enrol"))
        run.client(ClientSettings(TrustServer, policy = { AGREED }, models = listOf("other"))).use {
            assertReason(StateException.Reason.NOT_ENROLLED) { it.run() }
        }
    }

    @Test
    fun `a server that has forgotten the client gets it back each time, but once without a check-in between`() {
        val run = clientOf(FakeServer(rounds = 4))
        run.client().use { client ->
            runBlocking { client.runOnce() }
            for (enrolments in 2..3) {
                run.server.enrolled.clear()
                assertTrue(runBlocking { client.runOnce() } is Event.RoundReported)
                assertEquals(enrolments, run.server.count("enrol"))
            }
            repeat(2) { run.server.trouble("check-in") { throw refused("unauthorised", "no such client") } }
            assertReason(TransportException.Reason.REFUSED) { client.runOnce() }
            assertEquals(4, run.server.count("enrol"))
        }
    }

    @Test
    fun `results from before are not sent to a server that has forgotten the client`() {
        val run = clientOf(FakeServer(rounds = 2))
        run.server.trouble("update") { throw TransportException(TransportException.Reason.UNREACHABLE, "no network") }
        run.client().use { client ->
            assertReason(TransportException.Reason.UNREACHABLE) { client.runOnce() }
            assertEquals("unreachable", (client.state.value as ClientState.Failed).reason)
            run.server.enrolled.clear()
            runBlocking { client.runOnce() }
            val outcomes = client.journal.entries().filterIsInstance<JournalEntry.Upload>().map { it.outcome }
            assertEquals(listOf(JournalEntry.Outcome.DELIVERED, JournalEntry.Outcome.DROPPED), outcomes)
        }
        assertEquals(2, run.events<Event.RoundStarted>().size)
    }

    @Test
    fun `a revoked client ends with the server's reason`() {
        val run = clientOf(FakeServer(rounds = 2))
        run.client().use { client ->
            runBlocking { client.runOnce() }
            run.server.trouble("check-in") { throw refused("forbidden", "revoked by the operator") }
            assertReason(TransportException.Reason.REFUSED) { client.run() }
            assertTrue(client.state.value is ClientState.Refused)
        }
    }

    @Test
    fun `an unknown kind of response to a check-in is named`() {
        val run = clientOf(FakeServer())
        run.server.trouble("check-in") { CheckInResponse.getDefaultInstance() }
        run.client().use { assertReason(TransportException.Reason.BAD_ANSWER) { it.run() } }
    }

    @Test
    fun `what goes wrong in a round is reported to the server by its reason`() {
        val wanted =
            mapOf(
                EngineException.Reason.BUNDLE_UNUSABLE to FailureReason.FAILURE_REASON_BUNDLE,
                EngineException.Reason.CRASHED to FailureReason.FAILURE_REASON_BUNDLE,
                EngineException.Reason.NON_FINITE to FailureReason.FAILURE_REASON_NON_FINITE,
                EngineException.Reason.BAD_INPUT to FailureReason.FAILURE_REASON_UNSUPPORTED,
            )
        val run = clientOf(FakeServer(rounds = wanted.size))
        run.client().use { client ->
            for (reason in wanted.keys) {
                run.engineOf = { throw EngineException(reason, "\uD83D\uDE00".repeat(2_000)) }
                val outcome = runBlocking { client.runOnce() } as Event.RoundFailed
                assertEquals("\uD83D\uDE00".repeat(1_000), outcome.detail)
            }
        }
        assertEquals(wanted.values.toList(), run.server.failures.values.map { it.reason })
    }

    @Test
    fun `an album without train photos gives the round up`() {
        val run = clientOf(FakeServer())
        run.photos.clear()
        val outcome = run.client().use { runBlocking { it.runOnce() } } as Event.RoundFailed
        assertEquals(AssignmentException.Reason.NO_PHOTOS, outcome.reason)
        assertEquals(FailureReason.FAILURE_REASON_NO_PHOTOS, run.server.failures.getValue(1).reason)
    }

    @Test
    fun `cancelling during training leaves nothing half done`() {
        val run = clientOf(FakeServer(trainingPlan(epochs = 1_000_000)))
        val training = run.trainingBegins()
        run.client().use { client ->
            runBlocking {
                val running = launch(Dispatchers.Default) { client.run() }
                training.await()
                running.cancelAndJoin()
            }
            assertEquals(ClientState.Idle, client.state.value)
            run.server.plan = trainingPlan()
            assertTrue(runBlocking { client.runOnce() } is Event.RoundReported)
        }
        assertEquals(setOf(1L), run.server.updates.keys)
    }

    @Test
    fun `a running client that is cancelled hears of its end once, without an error`() {
        val run = clientOf(FakeServer())
        val arrived = CompletableDeferred<Unit>()
        run.server.trouble("check-in") {
            arrived.complete(Unit)
            awaitCancellation()
        }
        val callbacks = Recorder()
        run.client().use { client ->
            val running = client.start(callbacks)
            runBlocking { arrived.await() }
            running.cancel()
            running.cancel()
            callbacks.awaitEnd()
        }
        assertEquals(null, callbacks.error)
        assertEquals(1, callbacks.ends)
    }

    @Test
    fun `a running client that cannot go on says why`() {
        val run = clientOf(FakeServer())
        val callbacks = Recorder()
        run.client(ClientSettings(TrustServer, "no")).use { client ->
            client.start(callbacks)
            callbacks.awaitEnd()
        }
        assertEquals(TransportException.Reason.REFUSED, (callbacks.error as TransportException).reason)
    }

    @Test
    fun `an error that is no exception is reported as a failure too`() {
        val run = clientOf(FakeServer())
        run.engineOf = { throw OutOfMemoryError("the test's") }
        val callbacks = Recorder()
        run.client().use { client ->
            client.start(callbacks)
            callbacks.awaitEnd()
        }
        assertTrue("${callbacks.error}", callbacks.error?.cause is OutOfMemoryError)
        assertEquals(
            ClientState.Failed("internal", "java.lang.OutOfMemoryError: the test's"),
            callbacks.states.last(),
        )
    }

    @Test
    fun `a number of rounds can be requested`() {
        val run = clientOf(FakeServer(rounds = 5))
        val callbacks = Recorder()
        run.client().use { client ->
            client.start(callbacks, rounds = 2)
            callbacks.awaitEnd()
        }
        assertEquals(setOf(1L, 2L), run.server.updates.keys)
    }

    @Test
    fun `closing ends a check-in that is held, and frees the folder`() {
        val run = clientOf(FakeServer())
        val arrived = CompletableDeferred<Unit>()
        run.server.trouble("check-in") {
            arrived.complete(Unit)
            awaitCancellation()
        }
        val callbacks = Recorder()
        val client = run.client()
        client.start(callbacks)
        runBlocking { arrived.await() }
        run.client().use { second -> assertReason(StateException.Reason.IN_USE) { second.runOnce() } }
        client.close()
        client.close()
        callbacks.awaitEnd()
        run.client().use { assertTrue(runBlocking { it.runOnce() } is Event.RoundReported) }
        val error = runCatching { runBlocking { client.runOnce() } }.exceptionOrNull()
        assertTrue("$error", error is IllegalStateException)
    }

    @Test
    fun `an app can predict with the model that the server announced, also after it was closed`() {
        val run = clientOf(FakeServer(trainingPlan(epochs = 100)))
        val photo = run.photos.first { it.label == "cat" }.file
        run.client().use { client ->
            runBlocking {
                assertEquals(emptyList<String>(), client.classNames())
                assertReasonIn(AssignmentException.Reason.UNSUPPORTED) { client.predict(photo) }
                client.run()
            }
        }
        val calls = run.server.calls.size
        run.client(ClientSettings(TrustServer, policy = { AGREED })).use { client ->
            val found = runBlocking { client.predict(photo) }
            assertEquals(listOf("cat", "dog", "emu"), found.keys.toList())
            assertEquals(listOf("cat", "dog", "emu"), runBlocking { client.classNames() })
            assertEquals(1.0, found.values.sum(), 1e-9)
            assertEquals(found, runBlocking { client.predict(photo, TASK) })
            assertReason(AssignmentException.Reason.UNSUPPORTED) { client.predict(photo, TASK + 1) }
        }
        // All but the model of the last round was here.
        assertEquals(listOf("blob"), run.server.calls.drop(calls).distinct())
    }

    @Test
    fun `what is embedded when a photo arrives need not be when a round begins`() {
        val run = clientOf(FakeServer(rounds = 2))
        val later = run.photos.removeAt(0)
        run.client().use { client ->
            runBlocking {
                assertEquals(0, client.embedNew())
                client.runOnce()
                client.run()
                run.photos += later
                run.events.clear()
                assertEquals(1, client.embedNew())
                assertEquals(0, client.embedNew())
                assertEquals(1, run.events<Event.Embedded>().size)
                client.dropFeatures(listOf(later.entry.photo))
                assertEquals(1, client.embedNew())
            }
        }
    }

    @Test
    fun `the journal lists enrolment, updates and failures`() {
        val run = clientOf(FakeServer(rounds = 2))
        run.client().use { client ->
            runBlocking { client.runOnce() }
            run.photos.clear()
            runBlocking { client.runOnce() }
            val (failure, upload, enrolment) = client.journal.entries()
            assertEquals(AssignmentException.Reason.NO_PHOTOS, (failure as JournalEntry.Failure).reason)
            assertEquals(run.server.updates.getValue(1).size.toLong(), (upload as JournalEntry.Upload).bytes)
            assertTrue(enrolment is JournalEntry.Enrolment)
            assertEquals(
                List(3) { JournalEntry.Outcome.DELIVERED },
                client.journal.entries().map { it.outcome },
            )
        }
    }

    @Test
    fun `two runs of one client take turns`() {
        val run = clientOf(FakeServer(rounds = 2))
        run.client().use { client ->
            runBlocking {
                val both = List(2) { async(Dispatchers.Default) { client.runOnce() } }
                assertEquals(setOf(1L, 2L), both.map { (it.await() as Event.RoundReported).round }.toSet())
            }
        }
    }

    @Test
    fun `who waits for his turn and is cancelled does not change the state`() {
        val run = clientOf(FakeServer())
        val held = run.server.hold("check-in")
        run.client().use { client ->
            runBlocking {
                val first = async { client.runOnce() }
                held.arrived.await()
                val second = async(start = CoroutineStart.UNDISPATCHED) { client.runOnce() }
                // The client's thread does this after it has met the second.
                client.embedNew()
                second.cancelAndJoin()
                assertEquals(ClientState.CheckingIn, client.state.value)
                held.released.complete(Unit)
                assertTrue(first.await() is Event.RoundReported)
            }
        }
    }

    @Test
    fun `a run that is offline is reported as such whatever else is requested of the client`() {
        val run = clientOf(FakeServer(rounds = 2))
        val offline = CompletableDeferred<Unit>()
        run.client().use { client ->
            runBlocking {
                client.runOnce()
                run.server.trouble("check-in") {
                    run.repeated()
                    offline.complete(Unit)
                    awaitCancellation()
                }
                val running = launch { client.run() }
                offline.await()
                client.embedNew()
                assertEquals(ClientState.Retrying("no network", 1_000, 1), client.state.value)
                running.cancelAndJoin()
            }
        }
    }

    @Test
    fun `a request aside that had to be repeated leaves the state as it was`() {
        val run = clientOf(FakeServer())
        val photo = run.photos.first().file
        run.client().use { client ->
            runBlocking {
                client.checkIn()
                run.server.trouble("blob") {
                    run.repeated()
                    assertEquals(ClientState.Retrying("no network", 1_000, 1), client.state.value)
                    throw refused("unknown", "no such blob")
                }
                assertReasonIn(TransportException.Reason.REFUSED) { client.predict(photo) }
                assertEquals(ClientState.Idle, client.state.value)
            }
        }
    }

    @Test
    fun `a request aside that had to be repeated is no state of a run that is under way`() {
        val run = clientOf(FakeServer())
        val photo = run.photos.first().file
        run.client().use { client ->
            runBlocking {
                client.checkIn()
                val held = run.server.hold("check-in")
                val running = launch { client.run() }
                held.arrived.await()
                run.server.trouble("blob") {
                    run.repeated()
                    assertEquals(ClientState.CheckingIn, client.state.value)
                    throw refused("unknown", "no such blob")
                }
                assertReasonIn(TransportException.Reason.REFUSED) { client.predict(photo) }
                assertEquals(1, run.events<Event.Retrying>().size)
                assertEquals(ClientState.CheckingIn, client.state.value)
                running.cancelAndJoin()
            }
        }
    }

    @Test
    fun `what cannot be closed leaves the folder free`() {
        val run = clientOf(FakeServer(rounds = 2))
        run.engineOf = { bundle ->
            object : Engine by SoftmaxEngine(bundle) {
                override fun close() = error("it does not close")
            }
        }
        val client = run.client()
        runBlocking { client.runOnce() }
        assertThrows(IllegalStateException::class.java) { client.close() }
        run.engineOf = ::SoftmaxEngine
        run.client().use { assertTrue(runBlocking { it.runOnce() } is Event.RoundReported) }
    }

    @Test
    fun `a request that was given up may have arrived, and one that a process took along too`() {
        val run = clientOf(FakeServer())
        val arrived = CompletableDeferred<Unit>()
        run.server.trouble("enrol") {
            arrived.complete(Unit)
            awaitCancellation()
        }
        run.client().use { client ->
            runBlocking {
                val running = launch { client.run() }
                arrived.await()
                running.cancelAndJoin()
            }
            assertEquals(JournalEntry.Outcome.UNKNOWN, client.journal.entries().single().outcome)
        }
        StateFolder.open(folder.root, "https://fl.example.org", JdbcDatabase::open).use { state ->
            Journal(state).enrolment(Capabilities.getDefaultInstance(), 10)
        }
        run.client().use { client ->
            assertEquals(List(2) { JournalEntry.Outcome.UNKNOWN }, client.journal.entries().map { it.outcome })
        }
    }

    @Test
    fun `the same assignment and photos give the same bytes on any client`() {
        val bodies =
            listOf("one", "two").map { name ->
                val run = ClientRun(FakeServer(trainingPlan(3)), folder.newFolder(name))
                run.client().use { runBlocking { it.runOnce() } }
                run.server.updates.getValue(1)
            }
        assertArrayEquals(bodies[0], bodies[1])
        assertNotEquals(0, bodies[0].size)
    }

    private fun ClientRun.trainingBegins(): CompletableDeferred<Unit> {
        val begun = CompletableDeferred<Unit>()
        onEvent = { if (it is Event.Trained) begun.complete(Unit) }
        return begun
    }

    private fun assertReason(
        reason: Enum<*>,
        work: suspend () -> Unit,
    ): FedLensException = runBlocking { assertReasonIn(reason, work) }

    private suspend fun assertReasonIn(
        reason: Enum<*>,
        work: suspend () -> Unit,
    ): FedLensException {
        try {
            work()
        } catch (error: FedLensException) {
            assertEquals(error.message, reason, error.reason)
            return error
        }
        fail("nothing was thrown; $reason was expected")
        error("unreachable")
    }
}
