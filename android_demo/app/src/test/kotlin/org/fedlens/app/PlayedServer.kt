package org.fedlens.app

import com.google.protobuf.ByteString
import com.google.protobuf.MessageLite
import okhttp3.mockwebserver.Dispatcher
import okhttp3.mockwebserver.MockResponse
import okhttp3.mockwebserver.MockWebServer
import okhttp3.mockwebserver.RecordedRequest
import okhttp3.mockwebserver.SocketPolicy
import okhttp3.tls.HandshakeCertificates
import okhttp3.tls.HeldCertificate
import okio.Buffer
import org.fedlens.proto.v1.Answer
import org.fedlens.proto.v1.Assemble
import org.fedlens.proto.v1.Assignment
import org.fedlens.proto.v1.Binding
import org.fedlens.proto.v1.BlobSet
import org.fedlens.proto.v1.CheckInRequest
import org.fedlens.proto.v1.CheckInResponse
import org.fedlens.proto.v1.ClassCounts
import org.fedlens.proto.v1.ClientRole
import org.fedlens.proto.v1.Codec
import org.fedlens.proto.v1.CurrentModel
import org.fedlens.proto.v1.DisplayNames
import org.fedlens.proto.v1.EnrolResponse
import org.fedlens.proto.v1.Evaluation
import org.fedlens.proto.v1.FailureResponse
import org.fedlens.proto.v1.Finished
import org.fedlens.proto.v1.ForgetResponse
import org.fedlens.proto.v1.HyperValue
import org.fedlens.proto.v1.Instruction
import org.fedlens.proto.v1.LocalPlan
import org.fedlens.proto.v1.Manifest
import org.fedlens.proto.v1.Receipt
import org.fedlens.proto.v1.Rows
import org.fedlens.proto.v1.Rule
import org.fedlens.proto.v1.Source
import org.fedlens.proto.v1.Statistic
import org.fedlens.proto.v1.Train
import org.fedlens.proto.v1.UpdateHeader
import org.fedlens.proto.v1.Upload
import org.fedlens.proto.v1.Wait
import org.fedlens.proto.v1.WaitReason
import java.io.Closeable
import java.io.File
import java.nio.ByteBuffer
import java.nio.ByteOrder
import java.security.MessageDigest
import java.util.Base64
import java.util.concurrent.CopyOnWriteArrayList
import java.util.concurrent.atomic.AtomicInteger

/**
 * A fake server for one phone and the bundle of the test vectors, with [rounds] rounds of training, each starting from
 * the previous result; over TLS if there is an [authority]. Its classes have [displayNames] by language.
 */
internal class PlayedServer(
    private val rounds: Int = 1,
    private val authority: HeldCertificate? = null,
    private val epochs: Int = 1,
    private val displayNames: Map<String, List<String>> = emptyMap(),
) : Closeable {
    /** The fate of a request: answered, or lost before or after it is carried out. */
    enum class Fate { ANSWERED, LOST_BEFORE, LOST_AFTER }

    private val server = MockWebServer()
    private val blobs = HashMap<String, ByteArray>()
    private val manifest = manifest()
    private var model = vector("plan/global.blob").readBytes()

    /** Bodies of updates as they arrived, in the order of arrival. */
    val updates = CopyOnWriteArrayList<ByteArray>()

    /** `POST /v1/check-in` and so on, in the order of arrival. */
    val requests = CopyOnWriteArrayList<String>()

    /** Check-ins in the order of arrival. */
    val checkIns = CopyOnWriteArrayList<CheckInRequest>()

    /** Called when a request has arrived, with its number from 0. */
    @Volatile var onRequest: (Int) -> Fate = { Fate.ANSWERED }

    /** The reason to wait that the server gives; null: work as [rounds] says. */
    @Volatile var waitReason: WaitReason? = null

    /** How long the server asks a phone to wait, in milliseconds. */
    @Volatile var waitMs: Int = WAIT_MS

    /** The task has a model already. */
    @Volatile var hasModel = true

    /** The response to a check-in is none of the protocol. */
    @Volatile var badCheckIn = false

    /** HTTP status and error code that refuse enrolment; null: no refusal. */
    @Volatile var refusal: Pair<Int, String>? = null
    private val count = AtomicInteger()

    init {
        keep(manifest)
        keep(model)
        vector("bundle/parts").listFiles().orEmpty().forEach { keep(it.readBytes()) }
        server.dispatcher =
            object : Dispatcher() {
                override fun dispatch(request: RecordedRequest): MockResponse = synchronized(blobs) { answer(request) }
            }
        if (authority != null) server.useHttps(shown(authority).sslSocketFactory(), false)
        server.start()
    }

    private fun manifest(): ByteArray {
        val plain = vector("bundle/manifest.pb").readBytes()
        if (displayNames.isEmpty()) return plain
        val names = displayNames.map { DisplayNames.newBuilder().setLanguage(it.key).addAllNames(it.value).build() }
        return Manifest
            .parseFrom(plain)
            .toBuilder()
            .addAllDisplayNames(names)
            .build()
            .toByteArray()
    }

    private fun shown(authority: HeldCertificate): HandshakeCertificates {
        val own = HeldCertificate.Builder().signedBy(authority).addSubjectAlternativeName("127.0.0.1").build()
        return HandshakeCertificates.Builder().heldCertificate(own, authority.certificate).build()
    }

    /** The enrolment link, as an operator would give it out. */
    val link: String
        get() {
            val scheme = if (authority == null) "http" else "https"
            val ca = authority?.run { "&ca=" + Base64.getUrlEncoder().encodeToString(certificate.encoded) }.orEmpty()
            return "$scheme://127.0.0.1:${server.port}/join#token=a-token$ca"
        }

    override fun close() = server.shutdown()

    private fun answer(request: RecordedRequest): MockResponse {
        val path = request.path.orEmpty()
        requests += "${request.method} $path"
        val fate = onRequest(count.getAndIncrement())
        if (fate == Fate.LOST_BEFORE) return MockResponse().setSocketPolicy(SocketPolicy.DISCONNECT_AFTER_REQUEST)
        val response =
            when {
                path == "/v1/clients" -> enrol()
                path == "/v1/check-in" -> {
                    checkIns += CheckInRequest.parseFrom(request.body.readByteArray())
                    if (badCheckIn) MockResponse().setBody("no message") else message(work())
                }
                path.startsWith("/v1/blobs/") -> blob(path.substringAfterLast('/'), request.getHeader("Range"))
                path.endsWith("/update") -> message(receive(request.body.readByteArray()))
                path.endsWith("/failure") -> message(FailureResponse.getDefaultInstance())
                path == "/v1/clients/self" -> message(ForgetResponse.getDefaultInstance())
                else -> MockResponse().setResponseCode(HTTP_NOT_FOUND)
            }
        return if (fate == Fate.ANSWERED) response else response.setSocketPolicy(SocketPolicy.DISCONNECT_AFTER_REQUEST)
    }

    private fun enrol(): MockResponse {
        val (status, code) =
            refusal ?: return message(
                EnrolResponse.newBuilder().setRole(ClientRole.CLIENT_ROLE_TRAINER).build(),
            )
        val error =
            org.fedlens.proto.v1.Error
                .newBuilder()
                .setCode(code)
                .setMessage("this enrolment token is not known here")
                .setRetry(org.fedlens.proto.v1.Retry.RETRY_NEVER)
                .build()
        return message(error).setResponseCode(status)
    }

    private fun work(): CheckInResponse {
        val round = updates.distinctBy { digest(it) }.size + 1
        val reason = waitReason
        return when {
            reason != null ->
                CheckInResponse
                    .newBuilder()
                    .setWait(
                        Wait
                            .newBuilder()
                            .setReason(reason)
                            .setRetryAfterMs(waitMs)
                            .addAllModels(models()),
                    ).build()
            round > rounds ->
                CheckInResponse.newBuilder().setFinished(Finished.newBuilder().addAllModels(models())).build()
            else -> CheckInResponse.newBuilder().setAssignment(assignment(round.toLong())).build()
        }
    }

    private fun models(): List<CurrentModel> = if (hasModel) listOf(current()) else emptyList()

    private fun current() =
        CurrentModel
            .newBuilder()
            .setTask(TASK)
            .setBundle(sha256(manifest))
            .addSets(global())
            .addRules(rule())
            .build()

    private fun global() =
        BlobSet
            .newBuilder()
            .setName("global")
            .setSha256(sha256(model))
            .setSize(model.size.toLong())

    private fun assignment(round: Long) =
        Assignment
            .newBuilder()
            .setTask(TASK)
            .setRound(round)
            .setBundle(sha256(manifest))
            .setSeed(ByteString.copyFrom(ByteArray(SEED_BYTES) { round.toByte() }))
            .setTimeLeftMs(ROUND_MS)
            .addSets(global())
            .setLocalPlan(localPlan())
            .setAnswer(Answer.ANSWER_UPDATE)

    private fun localPlan() =
        LocalPlan
            .newBuilder()
            .setFormat(1)
            .addInstructions(instruction("start").setAssemble(Assemble.newBuilder().addRules(rule())))
            .addInstructions(instruction("trained").setTrain(train()))
            .addUploads(
                Upload
                    .newBuilder()
                    .setName("weights")
                    .setValue("trained")
                    .setCodec(Codec.CODEC_FLOAT32),
            ).addStatistics(Statistic.newBuilder().setClassCounts(ClassCounts.getDefaultInstance()))
            .addEvaluations(Evaluation.newBuilder().setLabel("start").setValue("start"))
            .addEvaluations(Evaluation.newBuilder().setLabel("trained").setValue("trained"))

    private fun instruction(value: String) = Instruction.newBuilder().setValue(value)

    private fun rule() = Rule.newBuilder().setSource(Source.newBuilder().setDownload("global"))

    private fun train() =
        Train
            .newBuilder()
            .setProgram("step")
            .setStart("start")
            .setEpochs(epochs)
            .setRows(Rows.ROWS_TRAIN)
            .addHyperValues(HyperValue.newBuilder().setName("lr_classifier").setValue(RATE))
            .addBindings(
                Binding
                    .newBuilder()
                    .setReference("global")
                    .setSource(Source.newBuilder().setValue("start")),
            )

    private fun receive(body: ByteArray): Receipt {
        updates += body
        val length = ByteBuffer.wrap(body).order(ByteOrder.LITTLE_ENDIAN).int
        val blob = body.copyOfRange(Int.SIZE_BYTES + length, body.size)
        if (blob.isNotEmpty()) {
            model = blob
            keep(blob)
        }
        return Receipt.newBuilder().setBodySha256(sha256(body)).build()
    }

    private fun blob(
        digest: String,
        range: String?,
    ): MockResponse {
        val content = blobs[digest] ?: return MockResponse().setResponseCode(HTTP_NOT_FOUND)
        val response = MockResponse().setHeader("Content-Type", "application/octet-stream")
        if (range == null) return response.setBody(Buffer().write(content))
        val from = range.removePrefix("bytes=").removeSuffix("-").toInt()
        return response
            .setResponseCode(HTTP_PARTIAL)
            .setHeader("Content-Range", "bytes $from-${content.size - 1}/${content.size}")
            .setBody(Buffer().write(content, from, content.size - from))
    }

    private fun message(message: MessageLite) =
        MockResponse()
            .setHeader("Content-Type", "application/vnd.fedlens.v1+protobuf")
            .setBody(Buffer().write(message.toByteArray()))

    private fun keep(content: ByteArray) {
        blobs[digest(content)] = content
    }

    internal companion object {
        const val TASK = 3L
        private const val SEED_BYTES = 32
        private const val ROUND_MS = 60_000L
        private const val WAIT_MS = 60_000
        private const val RATE = 0.03
        private const val HTTP_PARTIAL = 206
        private const val HTTP_NOT_FOUND = 404

        /** The header of an update's body. */
        fun header(update: ByteArray): UpdateHeader {
            val length = ByteBuffer.wrap(update).order(ByteOrder.LITTLE_ENDIAN).int
            return UpdateHeader.parseFrom(update.copyOfRange(Int.SIZE_BYTES, Int.SIZE_BYTES + length))
        }

        fun vector(path: String) = File(checkNotNull(System.getProperty("fedlens.repository")), "tests/vectors/$path")

        private fun sha256(content: ByteArray) =
            ByteString.copyFrom(MessageDigest.getInstance("SHA-256").digest(content))

        private fun digest(content: ByteArray) = sha256(content).joinToString("") { "%02x".format(it) }
    }
}
