package org.fedlens.sdk.training

import java.nio.ByteBuffer
import java.nio.ByteOrder

/** These numbers as little-endian float32, the form in which they are cached. */
internal fun FloatArray.toBytes(): ByteArray {
    val buffer = ByteBuffer.allocate(Float.SIZE_BYTES * size).order(ByteOrder.LITTLE_ENDIAN)
    buffer.asFloatBuffer().put(this)
    return buffer.array()
}

/** The [count] numbers from index [from] on in bytes made by [toBytes]; by default all of them. */
internal fun ByteArray.toFloats(
    from: Int = 0,
    count: Int = size / Float.SIZE_BYTES - from,
): FloatArray {
    val found = FloatArray(count)
    val bytes = ByteBuffer.wrap(this, Float.SIZE_BYTES * from, Float.SIZE_BYTES * count).slice()
    bytes.order(ByteOrder.LITTLE_ENDIAN).asFloatBuffer().get(found)
    return found
}
