package org.fedlens.sdk.net

import com.google.protobuf.MessageLite
import com.google.protobuf.Parser
import okhttp3.Response
import org.fedlens.proto.v1.Error
import org.fedlens.proto.v1.Retry
import org.fedlens.sdk.TransportException
import org.fedlens.sdk.TransportException.Reason
import org.fedlens.sdk.Wire
import org.fedlens.sdk.WireException
import java.net.HttpURLConnection.HTTP_BAD_REQUEST
import java.net.HttpURLConnection.HTTP_INTERNAL_ERROR
import java.net.HttpURLConnection.HTTP_MULT_CHOICE

/** The meaning of the server's responses; every message names the path. */
internal object Responses {
    const val MAX_RESPONSE_BYTES = 1L shl 20
    const val MAX_ERROR_BYTES = 64L shl 10
    const val MAX_SERVER_WAIT_MS = 3_600_000L
    private const val HTTP_TOO_MANY_REQUESTS = 429

    /** Decode a successful response. */
    fun <M : MessageLite> message(
        response: Response,
        parser: Parser<M>,
    ): M = decoded(response, parser, MAX_RESPONSE_BYTES)

    /**
     * The exception for an unsuccessful response.
     *
     * @return [TryAgain] if waiting may help, otherwise a [TransportException].
     */
    fun failure(response: Response): Exception {
        val status = response.code
        if (status in HTTP_MULT_CHOICE until HTTP_BAD_REQUEST) {
            return bad(response, "redirected ($status), which is not followed; give the server's own address")
        }
        if (status < HTTP_BAD_REQUEST) return bad(response, "status $status is not part of the protocol")
        if (typeOf(response) != Wire.MEDIA_TYPE) return foreign(response)
        val error = decoded(response, Error.parser(), MAX_ERROR_BYTES)
        val afterMs = minOf(Integer.toUnsignedLong(error.retryAfterMs), MAX_SERVER_WAIT_MS)
        val said = "${error.code}: ${error.message}"
        return when (error.retry) {
            Retry.RETRY_NOW -> {
                TryAgain(said, afterMs, atOnce = true)
            }

            Retry.RETRY_LATER -> {
                TryAgain(said, afterMs)
            }

            else -> {
                val message = "the server refuses (${error.code}): ${error.message}"
                TransportException(Reason.REFUSED, message, error.code)
            }
        }
    }

    /** The failure for a response that does not follow the protocol. */
    fun bad(
        response: Response,
        message: String,
        cause: Throwable? = null,
    ) = TransportException(Reason.BAD_ANSWER, "${pathOf(response)}: $message", cause = cause)

    /** Refuse a body that is compressed or not declared as [type]. */
    fun requireType(
        response: Response,
        type: String,
    ) {
        val encoding = response.header("Content-Encoding")
        val found = typeOf(response) ?: "unknown"
        if (found != type || encoding != null) {
            val encoded = if (encoding == null) "" else " in encoding $encoding"
            throw bad(response, "an answer of type $found$encoded; not from a FedLens server, check the address")
        }
    }

    /** The failure for an error from a proxy, or from another program at this address. */
    private fun foreign(response: Response): Exception {
        val status = response.code
        if (status >= HTTP_INTERNAL_ERROR || status == HTTP_TOO_MANY_REQUESTS) {
            return TryAgain("status $status from something between here and the server")
        }
        return bad(response, "status $status, not from a FedLens server; check the address")
    }

    private fun <M : MessageLite> decoded(
        response: Response,
        parser: Parser<M>,
        limit: Long,
    ): M {
        requireType(response, Wire.MEDIA_TYPE)
        val source = checkNotNull(response.body) { "OkHttp gives every answer of a call a body" }.source()
        if (source.request(limit + 1)) throw bad(response, "an answer of more than $limit bytes")
        try {
            return Wire.decode(parser, source.readByteArray())
        } catch (error: WireException) {
            throw bad(response, error.message.orEmpty(), error)
        }
    }

    private fun typeOf(response: Response): String? = response.body?.contentType()?.let { "${it.type}/${it.subtype}" }

    private fun pathOf(response: Response): String = response.request.url.encodedPath
}
