package org.fedlens.sdk.pass

import java.nio.ByteBuffer
import java.nio.ByteOrder

/** As they are cached: little-endian float32. */
internal fun FloatArray.toBytes(): ByteArray {
    val buffer = ByteBuffer.allocate(Float.SIZE_BYTES * size).order(ByteOrder.LITTLE_ENDIAN)
    buffer.asFloatBuffer().put(this)
    return buffer.array()
}

/** The [count] numbers from number [from] on of what [toBytes] has made; all of them unless told otherwise. */
internal fun ByteArray.toFloats(
    from: Int = 0,
    count: Int = size / Float.SIZE_BYTES - from,
): FloatArray {
    val found = FloatArray(count)
    val bytes = ByteBuffer.wrap(this, Float.SIZE_BYTES * from, Float.SIZE_BYTES * count).slice()
    bytes.order(ByteOrder.LITTLE_ENDIAN).asFloatBuffer().get(found)
    return found
}
