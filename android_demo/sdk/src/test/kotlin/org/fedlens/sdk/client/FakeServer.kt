package org.fedlens.sdk.client

import com.google.protobuf.ByteString
import kotlinx.coroutines.CompletableDeferred
import org.fedlens.proto.v1.Answer
import org.fedlens.proto.v1.Assemble
import org.fedlens.proto.v1.Assignment
import org.fedlens.proto.v1.Binding
import org.fedlens.proto.v1.BlobSet
import org.fedlens.proto.v1.Capabilities
import org.fedlens.proto.v1.CheckInRequest
import org.fedlens.proto.v1.CheckInResponse
import org.fedlens.proto.v1.ClientRole
import org.fedlens.proto.v1.Codec
import org.fedlens.proto.v1.CurrentModel
import org.fedlens.proto.v1.EnrolResponse
import org.fedlens.proto.v1.Evaluation
import org.fedlens.proto.v1.FailureRequest
import org.fedlens.proto.v1.Finished
import org.fedlens.proto.v1.ForgetResponse
import org.fedlens.proto.v1.HyperValue
import org.fedlens.proto.v1.Instruction
import org.fedlens.proto.v1.LocalPlan
import org.fedlens.proto.v1.Receipt
import org.fedlens.proto.v1.Rows
import org.fedlens.proto.v1.Rule
import org.fedlens.proto.v1.Source
import org.fedlens.proto.v1.Train
import org.fedlens.proto.v1.Upload
import org.fedlens.sdk.Bundle
import org.fedlens.sdk.KeyedHash
import org.fedlens.sdk.TransportException
import org.fedlens.sdk.UpdateFrame
import org.fedlens.sdk.Vectors
import org.fedlens.sdk.net.Transport
import org.fedlens.sdk.plan.Plans
import org.fedlens.sdk.readUpdate
import org.fedlens.sdk.sha256
import org.fedlens.sdk.toHex
import java.io.ByteArrayOutputStream
import java.io.File
import java.io.FileOutputStream

/**
 * A server for the bundle of the vectors and one task, with a round for each update, evaluation or failure. It stores
 * what it receives, and imitates network or server failures on demand.
 *
 * @param plan The local plan of every assignment; may change.
 */
class FakeServer(
    var plan: LocalPlan = trainingPlan(),
    private val rounds: Int = 1,
    private val role: ClientRole = ClientRole.CLIENT_ROLE_TRAINER,
    private val answer: Answer = Answer.ANSWER_UPDATE,
) {
    val bundle: Bundle = Bundle.open(Vectors.file("bundle"))
    val enrolled = HashSet<String>()
    val updates = LinkedHashMap<Long, ByteArray>()
    val evaluations = LinkedHashMap<Long, ByteArray>()
    val failures = LinkedHashMap<Long, FailureRequest>()

    /** What it sends as a statement about the bundle. */
    var statement: ByteString = ByteString.EMPTY
    val checkIns = ArrayList<CheckInRequest>()

    /** Calls in the order in which they came: enrol, check-in, blob, update, evaluation, failure, forget. */
    val calls = ArrayList<String>()
    private val troubles = ArrayList<Pair<String, suspend () -> Any?>>()
    private val blobs = HashMap<String, ByteArray>()

    /** Bytes of the global model; an update becomes the next one. */
    var model = part(bundle.manifest.initial.toByteArray())

    /** Make the next [call] do this first: throw, wait, or return another response. */
    fun trouble(
        call: String,
        what: suspend () -> Any?,
    ) {
        troubles += call to what
    }

    /** Make the next [call] wait until it is released. */
    fun hold(call: String) =
        Held().also { held ->
            trouble(call) {
                held.arrived.complete(Unit)
                held.released.await()
            }
        }

    /** A call that has come once [arrived] is complete, and goes on once [released] is. */
    class Held {
        val arrived = CompletableDeferred<Unit>()
        val released = CompletableDeferred<Unit>()
    }

    /** Remove the troubles that no call has met. */
    fun untroubled() = troubles.clear()

    fun count(call: String): Int = calls.count { it == call }

    internal fun update(round: Long): UpdateFrame = readUpdate(updates.getValue(round))

    /** The transport to this server for the client with this secret. */
    internal fun transport(secret: ByteArray): Transport = Way(KeyedHash.clientId(secret).toHex())

    fun assignment(): Assignment =
        Assignment
            .newBuilder()
            .setTask(TASK)
            .setRound(1L + updates.size + evaluations.size + failures.size)
            .setBundle(ByteString.copyFrom(bundle.id))
            .setSeed(ByteString.copyFrom(ByteArray(KeyedHash.DIGEST_BYTES) { it.toByte() }))
            .setTimeLeftMs(60_000)
            .addSets(globalSet())
            .setLocalPlan(plan)
            .setAnswer(answer)
            .setStatement(statement)
            .build()

    private fun globalSet(): BlobSet {
        val digest = sha256(model)
        blobs[digest.toHex()] = model
        return BlobSet
            .newBuilder()
            .setName(GLOBAL)
            .setSha256(ByteString.copyFrom(digest))
            .setSize(model.size.toLong())
            .build()
    }

    private fun part(digest: ByteArray): ByteArray = bundle.part(digest).readBytes()

    private fun blob(digest: ByteArray): ByteArray =
        when {
            digest.contentEquals(bundle.id) -> Vectors.bytes("bundle/manifest.pb")
            digest.toHex() in blobs -> blobs.getValue(digest.toHex())
            bundle.part(digest).isFile -> part(digest)
            else -> throw refused("unknown", "no such blob")
        }

    private inner class Way(
        private val client: String,
    ) : Transport {
        override suspend fun enrol(
            token: String,
            capabilities: Capabilities,
        ): EnrolResponse =
            called("enrol") {
                if (token != TOKEN) throw refused("forbidden", "this enrolment token is not known")
                enrolled += client
                EnrolResponse.newBuilder().setRole(role).build()
            }

        override suspend fun checkIn(request: CheckInRequest): CheckInResponse =
            called("check-in") {
                known()
                checkIns += request
                val assignment = assignment()
                val response = CheckInResponse.newBuilder()
                if (assignment.round > rounds) response.setFinished(finished()) else response.setAssignment(assignment)
                response.build()
            }

        override suspend fun fetch(
            sha256: ByteArray,
            into: File,
            maxBytes: Long,
        ) {
            val content = called("blob") { known().let { blob(sha256) } }
            val have = into.length().toInt()
            FileOutputStream(into, true).use { it.write(content, have, content.size - have) }
        }

        override suspend fun putUpdate(
            task: Long,
            round: Long,
            update: UpdateFrame,
        ): Receipt =
            called("update") {
                known()
                val body = bodyOf(update)
                val before = updates[round]
                if (before != null && !before.contentEquals(body)) throw refused("update-differs", "another is here")
                if (before == null && round != assignment().round) throw refused("round-closed", "too late")
                updates[round] = body
                update.blobs.singleOrNull()?.let { model = ByteArrayOutputStream().also(it::writeTo).toByteArray() }
                receipt(body)
            }

        override suspend fun putEvaluation(
            task: Long,
            round: Long,
            update: UpdateFrame,
        ): Receipt =
            called("evaluation") {
                known()
                receipt(bodyOf(update).also { evaluations[round] = it })
            }

        override suspend fun reportFailure(
            task: Long,
            round: Long,
            request: FailureRequest,
        ) {
            called<Unit>("failure") {
                known()
                failures[round] = request
            }
        }

        override suspend fun forget(): ForgetResponse =
            called("forget") {
                known()
                enrolled -= client
                ForgetResponse.newBuilder().setAggregating(true).build()
            }

        override fun close() = Unit

        private fun known() {
            if (client !in enrolled) throw refused("unauthorised", "no such client")
        }

        private suspend fun <T> called(
            call: String,
            respond: () -> T,
        ): T {
            calls += call
            val trouble = troubles.indexOfFirst { it.first == call }
            val instead = if (trouble < 0) null else troubles.removeAt(trouble).second()
            @Suppress("UNCHECKED_CAST")
            return if (instead == null || instead == Unit) respond() else instead as T
        }
    }

    private fun finished(): Finished {
        val model =
            CurrentModel
                .newBuilder()
                .setTask(TASK)
                .setBundle(ByteString.copyFrom(bundle.id))
                .addSets(globalSet())
                .addAllRules(Plans.startRules(plan))
                .setStatement(statement)
        return Finished.newBuilder().addModels(model).build()
    }

    companion object {
        const val TASK = 7L
        const val TOKEN = "come-in"
        private const val GLOBAL = "global"

        /** Trains everything from `global` for some epochs and sends everything. */
        fun trainingPlan(epochs: Int = 1): LocalPlan =
            LocalPlan
                .newBuilder()
                .setFormat(1)
                .addInstructions(
                    Instruction
                        .newBuilder()
                        .setValue("start")
                        .setAssemble(Assemble.newBuilder().addRules(globalRule())),
                ).addInstructions(Instruction.newBuilder().setValue("trained").setTrain(train(epochs)))
                .addUploads(
                    Upload
                        .newBuilder()
                        .setName("weights")
                        .setValue("trained")
                        .setCodec(Codec.CODEC_FLOAT32),
                ).addEvaluations(Evaluation.newBuilder().setLabel("start").setValue("start"))
                .addEvaluations(Evaluation.newBuilder().setLabel("trained").setValue("trained"))
                .build()

        private fun globalRule() = Rule.newBuilder().setSource(Source.newBuilder().setDownload(GLOBAL))

        private fun train(epochs: Int) =
            Train
                .newBuilder()
                .setProgram("step")
                .setStart("start")
                .setEpochs(epochs)
                .setRows(Rows.ROWS_TRAIN)
                .addHyperValues(HyperValue.newBuilder().setName("lr_classifier").setValue(0.5))
                .addBindings(
                    Binding
                        .newBuilder()
                        .setReference("global")
                        .setSource(Source.newBuilder().setValue("start")),
                )

        fun refused(
            code: String,
            message: String,
        ) = TransportException(TransportException.Reason.REFUSED, "the server refuses ($code): $message", code)

        fun receipt(body: ByteArray): Receipt =
            Receipt.newBuilder().setBodySha256(ByteString.copyFrom(sha256(body))).build()

        private fun bodyOf(update: UpdateFrame) = ByteArrayOutputStream().also(update::writeTo).toByteArray()
    }
}
