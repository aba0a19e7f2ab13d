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
 * The calls of the protocol, to one server as one client. A transport tries again by itself where that may help; a
 * cancelled call leaves no connection busy.
 *
 * Every call throws a [org.fedlens.sdk.TransportException].
 */
public interface Transport : Closeable {
    /** Makes this client known; repeating it is harmless. */
    public suspend fun enrol(
        token: String,
        capabilities: Capabilities,
    ): EnrolResponse

    /** Asks for work; takes up to the request's `hold_ms` longer than other calls. */
    public suspend fun checkIn(request: CheckInRequest): CheckInResponse

    /**
     * Appends the missing bytes of a part or blob to [into], which is empty, absent or a beginning. Its digest is
     * checked by the caller.
     *
     * @param sha256 32 bytes.
     * @param maxBytes More of them in all are a `BAD_ANSWER`. What came before such an error stays, unless going on
     *     from there would bring the same error again.
     * @throws org.fedlens.sdk.StateException `NOT_WRITABLE`: the file cannot be written.
     */
    public suspend fun fetch(
        sha256: ByteArray,
        into: File,
        maxBytes: Long,
    )

    /** Sends a result; returns when the server has it on its disk. */
    public suspend fun putUpdate(
        task: Long,
        round: Long,
        update: UpdateFrame,
    ): Receipt

    /** Sends an evaluator's result; otherwise as [putUpdate]. */
    public suspend fun putEvaluation(
        task: Long,
        round: Long,
        update: UpdateFrame,
    ): Receipt

    /** Gives up an assignment, for good. */
    public suspend fun reportFailure(
        task: Long,
        round: Long,
        request: FailureRequest,
    )

    /** Has the server delete everything about this client. */
    public suspend fun forget(): ForgetResponse
}
