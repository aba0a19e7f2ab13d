package org.fedlens.sdk.net

import kotlinx.coroutines.CoroutineStart
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.asExecutor
import kotlinx.coroutines.awaitCancellation
import kotlinx.coroutines.coroutineScope
import kotlinx.coroutines.currentCoroutineContext
import kotlinx.coroutines.ensureActive
import kotlinx.coroutines.launch
import kotlinx.coroutines.suspendCancellableCoroutine
import kotlinx.coroutines.withContext
import okhttp3.Call
import okhttp3.Response
import org.fedlens.sdk.TransportException
import org.fedlens.sdk.TransportException.Reason
import java.io.IOException
import java.io.InterruptedIOException
import java.net.ProtocolException
import java.net.UnknownServiceException
import javax.net.ssl.SSLException
import kotlin.coroutines.resumeWithException

private val requests = Dispatchers.IO.asExecutor()

/**
 * Send the request and pass the response to [read], on a thread that may block.
 *
 * While the request is on its way, a cancelled coroutine resumes at once, even if the sending thread waits for a name
 * server. Once there is a response, it resumes after [read] has ended, so that nothing is written after the call. The
 * connection is closed in both cases.
 *
 * @param pins The configured pins, for messages.
 * @throws TryAgain The same request may succeed later.
 * @throws TransportException The request cannot succeed.
 */
internal suspend fun <T> Call.exchange(
    pins: List<String>,
    read: (Response) -> T,
): T {
    var responded = false
    try {
        return response().use { response ->
            responded = true
            reading { response.use(read) }
        }
    } catch (error: IOException) {
        // A cancelled call fails like a lost connection.
        currentCoroutineContext().ensureActive()
        throw meaning(error, responded, request().url.host, pins)
    } catch (error: Misread) {
        throw badResponse("the answer is not HTTP: ${error.cause?.message}", error)
    }
}

/** OkHttp itself failed to read the response, for example because of a negative status. */
private class Misread(
    cause: RuntimeException,
) : Exception(cause)

/** The response, read up to the start of its body. */
private suspend fun Call.response(): Response =
    suspendCancellableCoroutine { continuation ->
        continuation.invokeOnCancellation { cancel() }
        // Not on OkHttp's own threads, where an unexpected exception would end the app.
        requests.execute {
            val response =
                try {
                    execute()
                } catch (error: IOException) {
                    return@execute continuation.resumeWithException(error)
                } catch (error: SecurityException) {
                    val message = "this app may not use the network: ${error.message}; it needs the permission INTERNET"
                    val denied = TransportException(Reason.UNREACHABLE, message, cause = error)
                    return@execute continuation.resumeWithException(denied)
                } catch (error: RuntimeException) {
                    return@execute continuation.resumeWithException(Misread(error))
                } catch (error: Throwable) {
                    // Any other failure, such as lack of memory: otherwise the caller would wait for ever.
                    return@execute continuation.resumeWithException(error)
                }
            continuation.resume(response) { _, late, _ -> late.close() }
        }
    }

/** Run [read]; cancelling the coroutine cancels this call, so that [read] ends soon. */
private suspend fun <T> Call.reading(read: () -> T): T =
    coroutineScope {
        val canceller =
            launch(Dispatchers.IO, CoroutineStart.UNDISPATCHED) {
                try {
                    awaitCancellation()
                } finally {
                    cancel()
                }
            }
        withContext(Dispatchers.IO) { read() }.also { canceller.cancel() }
    }

/** The exception for a failure below HTTP. */
private fun meaning(
    error: IOException,
    responded: Boolean,
    host: String,
    pins: List<String>,
): Exception =
    when (error) {
        is SSLException -> {
            Trust.refusal(error, host, pins) ?: cut(error)
        }

        // A timeout of the socket, or of the whole call.
        is InterruptedIOException -> {
            TryAgain("no answer in time", cause = error)
        }

        // Android's network security configuration forbids plain HTTP, even to the device itself, unless it allows that
        // host.
        is UnknownServiceException -> {
            val message = "this device does not allow the connection: ${error.message}"
            TransportException(Reason.UNTRUSTED, message, cause = error)
        }

        // After the headers, this means that bytes are missing.
        is ProtocolException -> {
            if (responded) cut(error) else badResponse("the answer is not HTTP: ${error.message}", error)
        }

        else -> {
            cut(error)
        }
    }

private fun cut(error: IOException): TryAgain {
    val why = error.message ?: error.javaClass.simpleName
    return TryAgain("connection failed: $why", cause = error)
}

private fun badResponse(
    message: String,
    cause: Throwable,
) = TransportException(Reason.BAD_ANSWER, message, cause = cause)
