package org.fedlens.sdk.training

import com.google.protobuf.ByteString
import kotlinx.coroutines.CoroutineDispatcher
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.runBlocking
import org.fedlens.jvm.JdbcDatabase
import org.fedlens.proto.v1.Answer
import org.fedlens.proto.v1.Assignment
import org.fedlens.proto.v1.BlobSet
import org.fedlens.proto.v1.Capabilities
import org.fedlens.proto.v1.CheckInRequest
import org.fedlens.proto.v1.CheckInResponse
import org.fedlens.proto.v1.CurrentModel
import org.fedlens.proto.v1.EnrolResponse
import org.fedlens.proto.v1.FailureRequest
import org.fedlens.proto.v1.ForgetResponse
import org.fedlens.proto.v1.LocalPlan
import org.fedlens.proto.v1.Receipt
import org.fedlens.proto.v1.Rule
import org.fedlens.sdk.AGREED
import org.fedlens.sdk.Bundle
import org.fedlens.sdk.Event
import org.fedlens.sdk.Policy
import org.fedlens.sdk.TransportException
import org.fedlens.sdk.UpdateFrame
import org.fedlens.sdk.engine.Engine
import org.fedlens.sdk.model.ModelStore
import org.fedlens.sdk.model.Predictor
import org.fedlens.sdk.net.Transport
import org.fedlens.sdk.sha256
import org.fedlens.sdk.store.Cache
import org.fedlens.sdk.store.FeatureCache
import org.fedlens.sdk.store.Journal
import org.fedlens.sdk.store.NoisyAnswers
import org.fedlens.sdk.store.Outbox
import org.fedlens.sdk.store.StateFolder
import org.fedlens.sdk.store.StateTensors
import org.fedlens.sdk.store.TensorFiles
import org.fedlens.sdk.toHex
import java.io.Closeable
import java.io.File

/** A source of blobs that records which were fetched. */
internal class BlobServer : Transport {
    val blobs = HashMap<ByteString, ByteArray>()
    val fetched = ArrayList<ByteString>()

    fun put(content: ByteArray): ByteString = ByteString.copyFrom(sha256(content)).also { blobs[it] = content }

    override suspend fun fetch(
        sha256: ByteArray,
        into: File,
        maxBytes: Long,
    ) {
        val digest = ByteString.copyFrom(sha256)
        fetched += digest
        val content =
            blobs[digest] ?: throw TransportException(TransportException.Reason.REFUSED, "no such blob", "unknown")
        into.writeBytes(content)
    }

    override suspend fun enrol(
        token: String,
        capabilities: Capabilities,
    ): EnrolResponse = error("not asked here")

    override suspend fun checkIn(request: CheckInRequest): CheckInResponse = error("not asked here")

    override suspend fun putUpdate(
        task: Long,
        round: Long,
        update: UpdateFrame,
    ): Receipt = error("not asked here")

    override suspend fun putEvaluation(
        task: Long,
        round: Long,
        update: UpdateFrame,
    ): Receipt = error("not asked here")

    override suspend fun reportFailure(
        task: Long,
        round: Long,
        request: FailureRequest,
    ): Unit = error("not asked here")

    override suspend fun forget(): ForgetResponse = error("not asked here")

    override fun close() = Unit
}

/** Everything that [Assignments] works with, in a folder of its own. */
internal class TestClient(
    folder: File,
    var bundle: SummingBundle = SummingBundle(),
    var policy: Policy = AGREED.copy(allowTables = setOf("state/mine")),
    worker: CoroutineDispatcher = Dispatchers.Default.limitedParallelism(1),
    maxCacheBytes: Long = 1 shl 20,
    private val trust: BundleTrust? = null,
    engineOf: (Bundle) -> SummingEngine = ::SummingEngine,
) : Closeable {
    val server = BlobServer()
    val album = TestAlbum(File(folder, "photos"))
    val events = ArrayList<Event>()
    val engines = ArrayList<SummingEngine>()
    val state = StateFolder.open(File(folder, "state"), "https://fl.example.org", { JdbcDatabase.open(it) })
    val files = TensorFiles(state.tensorFolder)
    val clientState = StateTensors(state, files)
    val outbox = Outbox(state, files, clientState, Journal(state))
    val noisyAnswers = NoisyAnswers(state)
    var nanoTime = 0L
    val features = FeatureCache(File(folder, "features.sqlite3"), 1 shl 20, { JdbcDatabase.open(it) })

    /** Blobs of sets by name, as the server has them now. */
    val sets = LinkedHashMap<String, ByteString>()

    /** What the server sends as a statement about the bundle. */
    var statement: ByteString = ByteString.EMPTY

    val assignments =
        Assignments(
            transport = server,
            cache = Cache(File(folder, "cache"), maxCacheBytes),
            features = features,
            files = files,
            clientState = clientState,
            outbox = outbox,
            noisyAnswers = noisyAnswers,
            album = album,
            decoder = OneColour,
            currentPolicy = { policy },
            trust = trust,
            engineOf = { opened: Bundle -> engineOf(opened).also { engines += it } as Engine },
            worker = worker,
            emit = { synchronized(events) { events += it } },
            nanoTime = { nanoTime },
        )

    val models = ModelStore(state, files, Cache(File(folder, "cache"), maxCacheBytes))
    val predictor =
        Predictor(
            transport = server,
            cache = Cache(File(folder, "cache"), maxCacheBytes),
            features = features,
            decoder = OneColour,
            currentPolicy = { policy },
            trust = trust,
            hasUnmeteredNetwork = { true },
            engineOf = { opened: Bundle -> engineOf(opened).also { engines += it } as Engine },
            worker = worker,
            emit = { synchronized(events) { events += it } },
            arrived = models::arrived,
        )

    init {
        serve(bundle)
    }

    /** Give the server this bundle, for all assignments. */
    fun serve(next: SummingBundle) {
        bundle = next
        server.put(next.raw)
        server.blobs += next.parts
    }

    fun put(
        name: String,
        content: ByteArray,
    ): ByteString = server.put(content).also { sets[name] = it }

    fun assignment(
        plan: LocalPlan,
        round: Long = 1,
        task: Long = 7,
        answer: Answer = Answer.ANSWER_UPDATE,
    ): Assignment =
        Assignment
            .newBuilder()
            .setTask(task)
            .setRound(round)
            .setBundle(ByteString.copyFrom(bundle.id))
            .setSeed(ByteString.copyFrom(SEED))
            .addAllSets(sets.map { (name, digest) -> set(name, digest).build() })
            .setLocalPlan(plan)
            .setAnswer(answer)
            .setStatement(statement)
            .build()

    fun set(
        name: String,
        digest: ByteString,
    ): BlobSet.Builder =
        BlobSet
            .newBuilder()
            .setName(name)
            .setSha256(digest)
            .setSize(server.blobs[digest]?.size?.toLong() ?: 1)

    fun model(
        task: Long = 7,
        rule: Rule = from("global"),
        extractors: List<String> = emptyList(),
    ): CurrentModel =
        CurrentModel
            .newBuilder()
            .setTask(task)
            .setBundle(ByteString.copyFrom(bundle.id))
            .addAllSets(sets.map { (name, digest) -> set(name, digest).build() })
            .addRules(rule)
            .addAllExtractors(extractors)
            .setStatement(statement)
            .build()

    fun predict(
        model: CurrentModel,
        photo: File,
    ): Map<String, Double> =
        runBlocking { predictor.predict(models.kept(model).newest, { features(photo.readBytes()) }).first }

    inline fun <reified E : Event> events(): List<E> = synchronized(events) { events.filterIsInstance<E>() }

    fun downloaded(): Set<String> = events<Event.Downloaded>().map { it.sha256 }.toSet()

    fun hex(digest: ByteString): String = digest.toByteArray().toHex()

    override fun close() {
        assignments.close()
        predictor.close()
        features.close()
        trust?.close()
        state.close()
    }
}
