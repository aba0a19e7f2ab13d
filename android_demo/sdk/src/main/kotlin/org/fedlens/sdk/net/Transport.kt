package org.fedlens.sdk.net

import org.fedlens.proto.v1.Capabilities
import org.fedlens.proto.v1.CheckInRequest
import org.fedlens.proto.v1.CheckInResponse
import org.fedlens.proto.v1.EnrolResponse
import org.fedlens.proto.v1.FailureRequest
import org.fedlens.proto.v1.ForgetResponse
import org.fedlens.proto.v1.Receipt
import org.fedlens.sdk.UpdateFrame
import java.io.Closeable
import java.io.File

/**
 * The calls of the protocol, to one server as one client. A transport repeats requests by itself if that may help; a
 * cancelled call frees its connection.
 *
 * Every call throws a [org.fedlens.sdk.TransportException].
 */
internal interface Transport : Closeable {
    /** Enrol this client; idempotent. */
    suspend fun enrol(
        token: String,
        capabilities: Capabilities,
    ): EnrolResponse

    /** Ask for work; the call may take the request's `hold_ms` longer than others. */
    suspend fun checkIn(request: CheckInRequest): CheckInResponse

    /**
     * Append the missing bytes of a part or blob to [into], which may be absent, empty or incomplete. The caller checks
     * the digest.
     *
     * @param sha256 32 bytes.
     * @param maxBytes Maximum size in bytes; a larger blob is a `BAD_ANSWER`. Earlier bytes stay, unless continuing
     *     from there would fail again.
     * @throws org.fedlens.sdk.StateException `NOT_WRITABLE`: the file cannot be written.
     */
    suspend fun fetch(
        sha256: ByteArray,
        into: File,
        maxBytes: Long,
    )

    /**
     * [fetch], as long as it is allowed.
     *
     * @param check Called before each attempt; an exception from it ends the call.
     */
    suspend fun fetchChecked(
        sha256: ByteArray,
        into: File,
        maxBytes: Long,
        check: () -> Unit,
    ) {
        check()
        fetch(sha256, into, maxBytes)
    }

    /** Send a result; return when the server has stored it. */
    suspend fun putUpdate(
        task: Long,
        round: Long,
        update: UpdateFrame,
    ): Receipt

    /** Send an evaluator's result; see [putUpdate]. */
    suspend fun putEvaluation(
        task: Long,
        round: Long,
        update: UpdateFrame,
    ): Receipt

    /** Give up an assignment, for good. */
    suspend fun reportFailure(
        task: Long,
        round: Long,
        request: FailureRequest,
    )

    /** Tell the server to delete everything about this client. */
    suspend fun forget(): ForgetResponse
}
