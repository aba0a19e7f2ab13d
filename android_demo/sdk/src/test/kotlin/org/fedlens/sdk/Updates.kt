package org.fedlens.sdk

import org.fedlens.proto.v1.UpdateHeader
import org.fedlens.sdk.blob.Blob
import java.nio.ByteBuffer
import java.nio.ByteOrder

/** The update in the body of a request, as a server reads it. */
internal fun readUpdate(body: ByteArray): UpdateFrame {
    val bytes = ByteBuffer.wrap(body).order(ByteOrder.LITTLE_ENDIAN)
    val header = UpdateHeader.parseFrom(ByteArray(bytes.getInt()).also { bytes.get(it) })
    check(header.protocol == Wire.PROTOCOL) { "protocol ${header.protocol}" }
    val blobs = header.uploadsList.map { named -> ByteArray(named.size.toInt()).also { bytes.get(it) } }
    check(!bytes.hasRemaining()) { "${bytes.remaining()} bytes behind the blobs" }
    return UpdateFrame(header, blobs.map(Blob::fromBytes))
}
