package org.fedlens.sdk

import com.google.protobuf.ByteString
import com.google.protobuf.InvalidProtocolBufferException
import com.google.protobuf.MessageLite
import com.google.protobuf.Parser
import org.fedlens.proto.v1.Capabilities
import org.fedlens.proto.v1.EnrolRequest

/** The encoding of messages over HTTP, common to every call. */
internal object Wire {
    /** The version of the protocol: field 1 of every request. */
    const val PROTOCOL: Int = 1

    /** The `Content-Type` of every body. */
    const val MEDIA_TYPE: String = "application/vnd.fedlens.v1+protobuf"

    /**
     * The message in [body]; unknown fields are ignored.
     *
     * @param parser Parser of the message type, such as `Receipt.parser()`.
     * @throws WireException The bytes are no such message.
     */
    fun <M : MessageLite> decode(
        parser: Parser<M>,
        body: ByteArray,
    ): M =
        try {
            parser.parseFrom(body)
        } catch (error: InvalidProtocolBufferException) {
            throw WireException(WireException.Reason.DAMAGED, "no readable message: ${error.message}", error)
        }

    /** The enrolment request of the client with id [clientId], 32 bytes. */
    internal fun enrolment(
        clientId: ByteArray,
        token: String,
        capabilities: Capabilities,
    ): EnrolRequest =
        EnrolRequest
            .newBuilder()
            .setProtocol(PROTOCOL)
            .setEnrolmentToken(token)
            .setClientId(ByteString.copyFrom(clientId))
            .setCapabilities(capabilities)
            .build()
}
