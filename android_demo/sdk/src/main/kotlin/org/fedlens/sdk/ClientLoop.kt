package org.fedlens.sdk

import org.fedlens.proto.v1.Assignment
import org.fedlens.proto.v1.CheckInRequest
import org.fedlens.proto.v1.CheckInResponse
import org.fedlens.proto.v1.ClientRole
import org.fedlens.proto.v1.CurrentModel
import org.fedlens.proto.v1.Wait
import org.fedlens.proto.v1.WaitReason
import org.fedlens.sdk.model.ModelChoice
import org.fedlens.sdk.model.ModelStore
import org.fedlens.sdk.model.Predictor
import org.fedlens.sdk.net.Transport
import org.fedlens.sdk.plan.Plans
import org.fedlens.sdk.store.Journal
import org.fedlens.sdk.store.Result
import org.fedlens.sdk.store.StateFolder
import org.fedlens.sdk.training.Assignments
import org.fedlens.sdk.training.Requirements
import java.util.Locale

/**
 * The client loop, on the client's thread. Only one of [runOnce] and [learnOfModel] runs at a time; [classNames],
 * [displayNames] and [models] run beside them on another thread.
 */
internal class ClientLoop(
    private val configuration: ClientConfiguration,
    private val state: StateFolder,
    private val transport: Transport,
    private val delivery: Delivery,
    private val assignments: Assignments,
    private val predictor: Predictor,
    private val store: ModelStore,
    private val journal: Journal,
    private val reporter: EventReporter,
) {
    private val settings = configuration.settings
    private val pacing = Pacing()
    private val abilities get() = Requirements.capabilities(settings.models, settings.policy())

    @Volatile private var role: Role? = storedRole()
    private var mayHaveResult = true

    // By the end of an earlier process, or by a cancellation.
    private var mayBeCutShort = true
    private var enrolledAgain = false

    // Task and round; no round has these numbers.
    private var ended = 0L to 0L
    private var notGiven = 0L to 0L

    private val onlyTest get() = role == Role.EVALUATOR

    /** The models of this phone, of which one predicts. */
    val models: ModelChoice =
        ModelChoice(store, predictor, configuration.album, settings.adoption, { onlyTest }, reporter::report)

    /** See [FedLensClient.embedNew]. */
    suspend fun embedNew(): Int {
        val model = store.announced(null) ?: return 0
        return assignments.embedNew(model, onlyTest)
    }

    /** See [FedLensClient.classNames]. */
    suspend fun classNames(): List<String> = manifest()?.classNamesList.orEmpty()

    /** See [FedLensClient.displayNames]. */
    suspend fun displayNames(locale: Locale): Map<String, String> =
        manifest()?.let { Manifests.displayNames(it, locale) }.orEmpty()

    private suspend fun manifest() = store.announced(null)?.let { predictor.manifest(it) }

    /** Tell the server to delete everything about this client; true if an update cannot be taken back. */
    suspend fun forget(): Boolean =
        try {
            // Even without a role: the response to an enrolment may have been lost, or the models may have changed.
            journal.mayBeEnrolled() && transport.forget().aggregating
        } catch (refusal: TransportException) {
            // A server that does not know this client has nothing to delete.
            if (refusal.code != UNKNOWN_CLIENT) throw refusal
            false
        }

    /**
     * Deliver the result in the outbox, or take part in one round if there is none.
     *
     * @param isHeld The server may hold check-ins, as the settings say.
     */
    suspend fun runOnce(isHeld: Boolean = true): Event.Outcome {
        val holdMs = if (isHeld) settings.holdMs else 0
        return recovering { nextOutcome(holdMs) }.also { models.settle() }
    }

    /** Enrol if necessary and ask once for the current model, without starting work. */
    suspend fun learnOfModel() {
        recovering {
            enrol()
            reporter.enter(ClientState.CheckingIn)
            // Without photos: a place in a round, which nobody would take here, is left to others.
            learnFrom(checkIn(photos = 0, holdMs = 0))
        }
        models.settle()
        reporter.enter(ClientState.Idle)
    }

    /** Run [work], and repeat it once after enrolling again if the server has forgotten this client. */
    private suspend fun <T> recovering(work: suspend () -> T): T =
        try {
            work()
        } catch (refusal: TransportException) {
            val isUnknown = refusal.code == UNKNOWN_CLIENT && role != null
            if (!isUnknown || settings.enrolmentToken == null || enrolledAgain) throw refusal
            enrolledAgain = true
            role = null
            // Earlier task and round numbers mean nothing to that server.
            state.reset()
            store.reload()
            work()
        }

    /** Store the models that the server announces: all of them, or with an assignment the one of its task. */
    private fun learnFrom(response: CheckInResponse) {
        when (response.resultCase) {
            CheckInResponse.ResultCase.ASSIGNMENT -> {
                modelOf(response.assignment)?.let { model ->
                    val others = store.announced.filter { it.task != model.task }
                    store.announce((others + model).sortedBy { it.task })
                }
            }
            CheckInResponse.ResultCase.WAIT -> store.announce(response.wait.modelsList)
            CheckInResponse.ResultCase.FINISHED -> store.announce(response.finished.modelsList)
            else -> throw badResponse("the answer to a check-in says nothing that this version knows")
        }
    }

    /** The model that a local plan starts from; null if there is none without values of the plan. */
    private fun modelOf(assignment: Assignment): CurrentModel? {
        val rules = Plans.startRules(assignment.localPlan)
        if (rules.isEmpty() || rules.any { it.source.hasValue() }) return null
        return CurrentModel
            .newBuilder()
            .setTask(assignment.task)
            .setBundle(assignment.bundle)
            .addAllSets(assignment.setsList)
            .addAllRules(rules)
            .addAllExtractors(assignment.localPlan.extractorsList)
            .setStatement(assignment.statement)
            .build()
    }

    private suspend fun nextOutcome(holdMs: Int): Event.Outcome {
        enrol()
        if (mayHaveResult) {
            delivery.waiting()?.let { return deliver(it) }
            mayHaveResult = false
        }
        goOnWaiting()
        while (true) {
            reporter.enter(ClientState.CheckingIn)
            val started = System.nanoTime()
            val response = checkIn(offered(), holdMs)
            val heldMs = (System.nanoTime() - started) / NANOS_PER_MS
            learnFrom(response)
            when (response.resultCase) {
                CheckInResponse.ResultCase.ASSIGNMENT -> takePart(response.assignment)?.let { return it }
                CheckInResponse.ResultCase.WAIT -> wait(response.wait, heldMs)
                else -> return Event.TasksFinished.also(reporter::report)
            }
        }
    }

    private suspend fun enrol() {
        if (role != null) return
        val token = settings.enrolmentToken ?: throw StateException(StateException.Reason.NOT_ENROLLED, withoutToken())
        reporter.enter(ClientState.Enrolling)
        val capabilities = abilities
        val bytes = Wire.enrolment(state.clientId, token, capabilities).serializedSize.toLong()
        val entry = journal.enrolment(capabilities, bytes)
        val found = journal.following(entry) { transport.enrol(token, capabilities) }.role
        val given =
            Role.entries.find { it.onTheWire == found } ?: throw badResponse(
                "the server enrols this client with a role that this version does not know",
            )
        state.set(ROLE to given.word.toByteArray(), CAPABILITIES to capabilities.toByteArray())
        role = given
        reporter.report(Event.Enrolled(state.clientId.toHex(), given.word))
    }

    private fun withoutToken(): String =
        "${configuration.folder} is " +
            if (state.get(CAPABILITIES) == null) {
                "not enrolled with ${configuration.server} yet; give an enrolment token"
            } else {
                "enrolled for other models or tables; give the enrolment token once more"
            }

    /** The number of photos to train on. */
    private suspend fun offered(): Int {
        val photos = if (onlyTest) 0 else configuration.album.examples().labelled.count { !it.isTest }
        return if (photos < settings.policy().leastTrainPhotos) 0 else photos
    }

    private suspend fun checkIn(
        photos: Int,
        holdMs: Int,
    ): CheckInResponse {
        val request =
            CheckInRequest
                .newBuilder()
                .setProtocol(Wire.PROTOCOL)
                .setTask(settings.task ?: 0)
                .setNumExamples(photos.toLong())
                .setHoldMs(holdMs)
                .setClientVersion(settings.clientVersion.toInt())
                .build()
        return transport.checkIn(request).also { enrolledAgain = false }
    }

    private suspend fun wait(
        wait: Wait,
        heldMs: Long,
    ) {
        val retryAfterMs = Integer.toUnsignedLong(wait.retryAfterMs)
        val pauseMs = pacing.pauseMs(retryAfterMs, heldMs)
        if (pauseMs >= LEAST_KEPT_PAUSE_MS) {
            keep(System.currentTimeMillis() + pauseMs)
            mayBeCutShort = true
        }
        val reason = if (wait.reason == WaitReason.UNRECOGNIZED) "?" else wait.reason.name
        reporter.report(Event.Waiting(reason.removePrefix("WAIT_REASON_").lowercase(), retryAfterMs, wait.detail))
        configuration.pause(pauseMs)
        mayBeCutShort = false
    }

    /** Wait for the rest of a pause that an earlier process or job has begun: the next one must not ask earlier. */
    private suspend fun goOnWaiting() {
        if (!mayBeCutShort) return
        val nowMs = System.currentTimeMillis()
        var leftMs = (state.get(NOT_BEFORE)?.let { String(it).toLong() } ?: 0) - nowMs
        if (leftMs > Pacing.LONGEST_PAUSE_MS) {
            // The clock was set back. Written, so that the next job does not wait for as long again.
            leftMs = Pacing.LONGEST_PAUSE_MS
            keep(nowMs + leftMs)
        }
        if (leftMs > 0) {
            reporter.report(Event.Waiting("not_before", leftMs))
            configuration.pause(leftMs)
        }
        mayBeCutShort = false
    }

    private fun keep(untilMs: Long) = state.set(NOT_BEFORE to untilMs.toString().toByteArray())

    private suspend fun takePart(assignment: Assignment): Event.Outcome? {
        val key = assignment.task to assignment.round
        // A server that repeats a finished assignment must not make a client spin.
        if (key == ended) configuration.pause(REPEATED_ASSIGNMENT_PAUSE_MS)
        mayHaveResult = true
        reporter.enter(ClientState.Preparing(assignment.task, assignment.round, 0, 0))
        val result =
            try {
                assignments.carryOut(assignment, onlyTest)
            } catch (failure: TransportException) {
                if (!failure.isAboutTheRequest) throw failure
                // The round has probably closed in the meantime, and its blobs are gone.
                if (notGiven != key) {
                    notGiven = key
                    return null
                }
                return giveUp(assignment, failure)
            } catch (failure: StateException) {
                throw failure
            } catch (failure: FedLensException) {
                // No other round would run here either.
                if (failure.reason == EngineException.Reason.RUNTIME_MISSING) throw failure
                return giveUp(assignment, failure)
            }
        return deliver(result)
    }

    private suspend fun giveUp(
        assignment: Assignment,
        failure: FedLensException,
    ): Event.Outcome {
        ended = assignment.task to assignment.round
        return delivery.giveUp(assignment, failure).also(reporter::report)
    }

    private suspend fun deliver(result: Result): Event.Outcome {
        reporter.enter(ClientState.Sending(result.task, result.round))
        val outcome = delivery.deliver(result)
        if (outcome is Event.RoundRefused) ended = result.task to result.round
        mayHaveResult = false
        return outcome.also(reporter::report)
    }

    private fun storedRole(): Role? {
        val word = state.get(ROLE)?.let { String(it) }
        // A client whose models or allowed tables have changed must enrol again.
        val enrolledWith = state.get(CAPABILITIES) ?: ByteArray(0)
        return Role.entries.find { it.word == word }?.takeIf { enrolledWith.contentEquals(abilities.toByteArray()) }
    }

    private fun badResponse(message: String) = TransportException(TransportException.Reason.BAD_ANSWER, message)

    private enum class Role(
        val word: String,
        val onTheWire: ClientRole,
    ) {
        TRAINER("trainer", ClientRole.CLIENT_ROLE_TRAINER),
        EVALUATOR("evaluator", ClientRole.CLIENT_ROLE_EVALUATOR),
    }

    private companion object {
        // StateFolder.reset() deletes ROLE and NOT_BEFORE.
        const val ROLE = "role"
        const val CAPABILITIES = "capabilities"
        const val NOT_BEFORE = "not_before"

        // Shorter pauses are not worth a write to the disk.
        const val LEAST_KEPT_PAUSE_MS = 5_000L
        const val REPEATED_ASSIGNMENT_PAUSE_MS = 5_000L
        const val NANOS_PER_MS = 1_000_000L
    }
}
