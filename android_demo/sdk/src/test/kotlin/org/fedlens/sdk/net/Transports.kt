package org.fedlens.sdk.net

import com.google.protobuf.ByteString
import com.google.protobuf.MessageLite
import kotlinx.coroutines.ExperimentalCoroutinesApi
import kotlinx.coroutines.test.TestScope
import okhttp3.mockwebserver.MockResponse
import okhttp3.mockwebserver.MockWebServer
import okio.Buffer
import org.fedlens.proto.v1.CheckInRequest
import org.fedlens.proto.v1.CheckInResponse
import org.fedlens.proto.v1.Error
import org.fedlens.proto.v1.Finished
import org.fedlens.proto.v1.Retry
import org.fedlens.proto.v1.UpdateHeader
import org.fedlens.proto.v1.UploadedBlob
import org.fedlens.sdk.TransportException
import org.fedlens.sdk.UpdateFrame
import org.fedlens.sdk.Wire
import org.fedlens.sdk.blob.Blob
import org.fedlens.sdk.blob.BlobWriter
import org.fedlens.sdk.blob.FloatTensor
import org.junit.Assert.assertTrue
import org.junit.Assert.fail
import java.io.File
import java.net.InetAddress
import java.util.concurrent.CountDownLatch
import java.util.concurrent.TimeUnit
import java.util.logging.Level
import java.util.logging.Logger
import kotlin.random.Random

internal val SECRET = ByteArray(32) { 's'.code.toByte() }
internal val CHECK_IN: CheckInRequest = CheckInRequest.newBuilder().setProtocol(1).build()
internal val FINISHED: CheckInResponse =
    CheckInResponse.newBuilder().setFinished(Finished.getDefaultInstance()).build()

/** The first failure that might pass is the last one. */
internal val ONCE = Backoff(giveUpAfterMs = 0)

private val serverLog = Logger.getLogger(MockWebServer::class.java.name)

/** A server on this machine that says nothing on standard error. */
internal fun serving(vararg responses: MockResponse): MockWebServer {
    serverLog.level = Level.OFF
    return MockWebServer().apply {
        responses.forEach(::enqueue)
        start(InetAddress.getByName("127.0.0.1"), 0)
    }
}

internal val MockWebServer.address: String get() = url("").toString()

internal fun reply(message: MessageLite): MockResponse =
    MockResponse().setHeader("Content-Type", Wire.MEDIA_TYPE).setBody(Buffer().write(message.toByteArray()))

internal fun refusal(
    status: Int,
    code: String,
    message: String,
    retry: Retry = Retry.RETRY_NEVER,
    retryAfterMs: Int = 0,
): MockResponse = reply(errorOf(code, message, retry, retryAfterMs)).setResponseCode(status)

internal fun errorOf(
    code: String,
    message: String,
    retry: Retry,
    retryAfterMs: Int = 0,
): Error =
    Error
        .newBuilder()
        .setCode(code)
        .setMessage(message)
        .setRetry(retry)
        .setRetryAfterMs(retryAfterMs)
        .build()

internal fun blobResponse(raw: ByteArray): MockResponse =
    MockResponse().setHeader("Content-Type", "application/octet-stream").setBody(Buffer().write(raw))

/** The bytes of [raw] from [from] on, as the response to a request for them. */
internal fun rangeResponse(
    raw: ByteArray,
    from: Int,
): MockResponse =
    blobResponse(raw.copyOfRange(from, raw.size))
        .setResponseCode(206)
        .setHeader("Content-Range", "bytes $from-${raw.size - 1}/${raw.size}")

/** A transport whose waits use the virtual time of the test's scheduler. */
@OptIn(ExperimentalCoroutinesApi::class)
internal fun TestScope.transportTo(
    server: String,
    backoff: Backoff = Backoff(),
    pins: List<String> = emptyList(),
    ca: File? = null,
    timeouts: Timeouts = Timeouts(),
    onRetry: OnRetry = { _, _, _ -> },
): HttpTransport {
    val retrying = Retrying(backoff, onRetry, Random(1), testScheduler::currentTime)
    return HttpTransport(server, SECRET, pins, ca, retrying, timeouts)
}

/** The error in which [call] ends; anything else fails the test. */
internal suspend fun failureOf(call: suspend () -> Any?): TransportException {
    try {
        call()
    } catch (error: TransportException) {
        return error
    }
    fail("the call succeeds")
    throw AssertionError()
}

/** An update with one tensor of [elements] float32 numbers. */
internal fun updateOf(elements: Int): UpdateFrame {
    val tensor = FloatTensor.of(listOf(elements.toLong()), FloatArray(elements) { it.toFloat() })
    val blob = Blob.fromBytes(BlobWriter.encode(mapOf("fc.bias" to tensor)))
    val header =
        UpdateHeader
            .newBuilder()
            .setProtocol(Wire.PROTOCOL)
            .addUploads(UploadedBlob.newBuilder().setSha256(ByteString.copyFrom(blob.digest)).setSize(blob.size))
            .build()
    return UpdateFrame(header, listOf(blob))
}

/** Wait for what another thread does at once. */
internal fun CountDownLatch.awaitSoon() = assertTrue(await(10, TimeUnit.SECONDS))
