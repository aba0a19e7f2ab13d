package org.fedlens.sdk.net

import com.google.protobuf.MessageLite
import com.google.protobuf.Parser
import okhttp3.CertificatePinner
import okhttp3.ConnectionPool
import okhttp3.ConnectionSpec
import okhttp3.HttpUrl
import okhttp3.HttpUrl.Companion.toHttpUrl
import okhttp3.Interceptor
import okhttp3.MediaType.Companion.toMediaType
import okhttp3.OkHttpClient
import okhttp3.Protocol
import okhttp3.Request
import okhttp3.RequestBody
import okhttp3.RequestBody.Companion.toRequestBody
import okio.BufferedSink
import org.fedlens.proto.v1.Capabilities
import org.fedlens.proto.v1.CheckInRequest
import org.fedlens.proto.v1.CheckInResponse
import org.fedlens.proto.v1.EnrolResponse
import org.fedlens.proto.v1.FailureRequest
import org.fedlens.proto.v1.FailureResponse
import org.fedlens.proto.v1.ForgetRequest
import org.fedlens.proto.v1.ForgetResponse
import org.fedlens.proto.v1.Receipt
import org.fedlens.sdk.KeyedHash
import org.fedlens.sdk.UpdateFrame
import org.fedlens.sdk.Wire
import org.fedlens.sdk.toHex
import java.io.File
import java.net.Proxy
import java.util.concurrent.TimeUnit
import javax.net.ssl.SSLContext
import javax.net.ssl.X509TrustManager

/**
 * Timeouts in milliseconds: for connecting, for silence, and in addition for a whole call with small messages, so that
 * a server that sends a byte now and then cannot hold the client for ever.
 */
internal class Timeouts(
    val connectMs: Long = 15_000,
    val silenceMs: Long = 60_000,
    val messagesMs: Long = 300_000,
)

/**
 * The protocol over HTTP/1.1, with one credential and a check of every response. The first call opens connections.
 * HTTPS uses the system's proxy, if any, which sees only the server's name.
 */
internal class HttpTransport(
    server: String,
    secret: ByteArray,
    private val pins: List<String>,
    ca: File?,
    private val retrying: Retrying,
    private val timeouts: Timeouts,
) : Transport {
    private val base: HttpUrl = ServerAddress.parse(server)
    private val id: ByteArray = KeyedHash.clientId(secret)
    private val authorization: String = KeyedHash.authorization(secret)
    private val pinner: CertificatePinner = Trust.pinned(base, pins)
    private val authorities: X509TrustManager? = ca?.let(Trust::only)
    private val connections = lazy(::newClient)

    /**
     * @param server Address such as `https://fl.example.org:8443`; plain HTTP is for this machine only.
     * @param secret The client's secret, 32 bytes, from which its id follows.
     * @param pins Public keys, one of which the server's certificate chain must hold: `sha256/` and the Base64 of the
     *     SHA-256 of the SubjectPublicKeyInfo. Empty: any key of a trusted certificate.
     * @param ca Certificates (PEM) to trust instead of the system's; null: the system's.
     * @param backoff How failed requests are repeated.
     * @param onRetry Called before each wait; an exception from it ends the call.
     * @throws org.fedlens.sdk.TransportException `UNTRUSTED`: [server] is neither an HTTPS address nor a plain HTTP
     *     address of this machine, [ca] cannot be read, or one of [pins] is malformed.
     */
    constructor(
        server: String,
        secret: ByteArray,
        pins: List<String> = emptyList(),
        ca: File? = null,
        backoff: Backoff = Backoff(),
        onRetry: OnRetry = { _, _, _ -> },
    ) : this(server, secret, pins, ca, Retrying(backoff, onRetry), Timeouts())

    override suspend fun enrol(
        token: String,
        capabilities: Capabilities,
    ): EnrolResponse {
        val request = Wire.enrolment(id, token, capabilities)
        return call("POST", "v1/clients", body(request), EnrolResponse.parser())
    }

    override suspend fun checkIn(request: CheckInRequest): CheckInResponse {
        val holdMs = Integer.toUnsignedLong(request.holdMs)
        return call("POST", "v1/check-in", body(request), CheckInResponse.parser(), holdMs)
    }

    override suspend fun fetch(
        sha256: ByteArray,
        into: File,
        maxBytes: Long,
    ): Unit = fetchChecked(sha256, into, maxBytes) { }

    override suspend fun fetchChecked(
        sha256: ByteArray,
        into: File,
        maxBytes: Long,
        check: () -> Unit,
    ): Unit =
        retrying.repeat {
            check()
            val download = Download(into, maxBytes)
            val request = newRequest("v1/blobs/${sha256.toHex()}")
            if (download.have > 0) request.header("Range", "bytes=${download.have}-")
            connections.value.newCall(request.build()).exchange(pins, download::append)
        }

    override suspend fun putUpdate(
        task: Long,
        round: Long,
        update: UpdateFrame,
    ): Receipt = call("PUT", "${pathOf(task, round)}/update", Streamed(update), Receipt.parser())

    override suspend fun putEvaluation(
        task: Long,
        round: Long,
        update: UpdateFrame,
    ): Receipt = call("PUT", "${pathOf(task, round)}/evaluation", Streamed(update), Receipt.parser())

    override suspend fun reportFailure(
        task: Long,
        round: Long,
        request: FailureRequest,
    ) {
        call("POST", "${pathOf(task, round)}/failure", body(request), FailureResponse.parser())
    }

    override suspend fun forget(): ForgetResponse {
        val request = ForgetRequest.newBuilder().setProtocol(Wire.PROTOCOL).build()
        // Somebody waits, and what could not be told is told by another call.
        return call("DELETE", "v1/clients/self", body(request), ForgetResponse.parser(), limitMs = FORGET_MS)
    }

    /** Close connections. Cancel running calls first, and do not use the transport afterwards. */
    override fun close() {
        if (connections.isInitialized()) connections.value.connectionPool.evictAll()
    }

    private suspend fun <M : MessageLite> call(
        method: String,
        path: String,
        body: RequestBody,
        parser: Parser<M>,
        holdMs: Long = 0,
        limitMs: Long? = null,
    ): M =
        retrying.repeat(limitMs) {
            val silenceMs = timeouts.silenceMs + holdMs
            // The duration of an upload depends on its size and the network.
            val allMs = limitMs ?: if (body is Streamed) UNLIMITED else silenceMs + timeouts.messagesMs
            val request = newRequest(path).method(method, body).build()
            within(silenceMs, allMs).newCall(request).exchange(pins) { response ->
                if (response.code != OK) throw Responses.failure(response)
                Responses.message(response, parser)
            }
        }

    private fun newRequest(path: String): Request.Builder =
        Request
            .Builder()
            .url("${base.toString().trimEnd('/')}/$path".toHttpUrl())
            .header("Authorization", authorization)
            // With this header set, OkHttp neither requests nor undoes compression.
            .header("Accept-Encoding", "identity")

    /**
     * A client that shares the connections, with other timeouts for silence and for the whole call, in milliseconds.
     */
    private fun within(
        silenceMs: Long,
        allMs: Long,
    ): OkHttpClient =
        connections.value
            .newBuilder()
            .readTimeout(minOf(silenceMs, MOST_MS), TimeUnit.MILLISECONDS)
            .callTimeout(minOf(allMs, MOST_MS), TimeUnit.MILLISECONDS)
            .build()

    private fun newClient(): OkHttpClient {
        val builder =
            OkHttpClient
                .Builder()
                // A client sends one request after another, so newer versions would not be faster.
                .protocols(listOf(Protocol.HTTP_1_1))
                .connectionPool(ConnectionPool(IDLE_CONNECTIONS, KEEP_ALIVE_S, TimeUnit.SECONDS))
                .followRedirects(false)
                .followSslRedirects(false)
                .certificatePinner(pinner)
                .connectTimeout(timeouts.connectMs, TimeUnit.MILLISECONDS)
                .readTimeout(timeouts.silenceMs, TimeUnit.MILLISECONDS)
                .writeTimeout(timeouts.silenceMs, TimeUnit.MILLISECONDS)
                .addNetworkInterceptor(Interceptor(::withoutExtras))
        if (base.isHttps) {
            builder.connectionSpecs(listOf(ConnectionSpec.MODERN_TLS))
        } else {
            // A proxy would see the secret.
            builder.connectionSpecs(listOf(ConnectionSpec.CLEARTEXT)).proxy(Proxy.NO_PROXY)
        }
        if (authorities != null) {
            val context = SSLContext.getInstance("TLS")
            context.init(null, arrayOf(authorities), null)
            builder.sslSocketFactory(context.socketFactory, authorities)
        }
        return builder.build()
    }

    private companion object {
        const val OK = 200
        const val FORGET_MS = 20_000L
        const val IDLE_CONNECTIONS = 2
        const val KEEP_ALIVE_S = 60L

        // OkHttp's longest timeout, and its value for no timeout.
        const val MOST_MS = Int.MAX_VALUE.toLong()
        const val UNLIMITED = 0L
        val MEDIA_TYPE = Wire.MEDIA_TYPE.toMediaType()

        // OkHttp adds these headers; the protocol does not use them.
        val EXTRAS = listOf("User-Agent", "Accept-Encoding", "Connection")

        fun withoutExtras(chain: Interceptor.Chain) =
            chain.proceed(
                chain
                    .request()
                    .newBuilder()
                    .apply { EXTRAS.forEach(::removeHeader) }
                    .build(),
            )

        fun pathOf(
            task: Long,
            round: Long,
        ) = "v1/tasks/${java.lang.Long.toUnsignedString(task)}/rounds/${java.lang.Long.toUnsignedString(round)}"

        fun body(message: MessageLite): RequestBody = message.toByteArray().toRequestBody(MEDIA_TYPE)
    }

    /** The body of an update, read from its blob again by every attempt. */
    private class Streamed(
        private val update: UpdateFrame,
    ) : RequestBody() {
        override fun contentType() = MEDIA_TYPE

        override fun contentLength() = update.size

        override fun writeTo(sink: BufferedSink) = update.writeTo(sink.outputStream())
    }
}
