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
 * Sends the request and gives [read] the answer, which it reads on a thread that may block.
 *
 * A cancelled coroutine is free at once while the request is on its way, whatever the thread that sends it is waiting
 * for, such as a name server. Once there is an answer, it is free when [read] has ended, so that nothing is written
 * behind the back of the caller. The connection is closed in both cases.
 *
 * @param pins As configured, for the text of an error.
 * @throws TryAgain The same request may succeed.
 * @throws TransportException It will not.
 */
internal suspend fun <T> Call.exchange(
    pins: List<String>,
    read: (Response) -> T,
): T {
    var answered = false
    try {
        return answer().use { response ->
            answered = true
            reading { response.use(read) }
        }
    } catch (error: IOException) {
        // A cancelled call fails like one whose connection was cut.
        currentCoroutineContext().ensureActive()
        throw meaning(error, answered, request().url.host, pins)
    } catch (error: Misread) {
        throw badAnswer("the answer is not HTTP: ${error.cause?.message}", error)
    }
}

/** OkHttp itself failed on what was sent to it, such as a negative status. */
private class Misread(
    cause: RuntimeException,
) : Exception(cause)

/** The answer up to the beginning of its body. */
private suspend fun Call.answer(): Response =
    suspendCancellableCoroutine { continuation ->
        continuation.invokeOnCancellation { cancel() }
        // Not by OkHttp's own threads, on which an unexpected exception would end the app.
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
                    // Whatever it is, such as want of memory: nobody else would wake the caller.
                    return@execute continuation.resumeWithException(error)
                }
            continuation.resume(response) { _, late, _ -> late.close() }
        }
    }

/** What [read] gives; this call is cancelled with the coroutine, so that it ends soon. */
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

/** What trouble below HTTP means for the request. */
private fun meaning(
    error: IOException,
    answered: Boolean,
    host: String,
    pins: List<String>,
): Exception =
    when (error) {
        is SSLException -> {
            Trust.refusal(error, host, pins) ?: cut(error)
        }

        // Of a socket for silence, of OkHttp for a call that takes too long in all.
        is InterruptedIOException -> {
            TryAgain("no answer in time", cause = error)
        }

        // Android's network security configuration forbids plain HTTP even to the device itself, unless it is named.
        is UnknownServiceException -> {
            val message = "this device does not allow the connection: ${error.message}"
            TransportException(Reason.UNTRUSTED, message, cause = error)
        }

        // Behind the headers it says that bytes are missing.
        is ProtocolException -> {
            if (answered) cut(error) else badAnswer("the answer is not HTTP: ${error.message}", error)
        }

        else -> {
            cut(error)
        }
    }

private fun cut(error: IOException): TryAgain {
    val why = error.message ?: error.javaClass.simpleName
    return TryAgain("connection failed: $why", cause = error)
}

private fun badAnswer(
    message: String,
    cause: Throwable,
) = TransportException(Reason.BAD_ANSWER, message, cause = cause)
