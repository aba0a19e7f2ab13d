package org.fedlens.sdk

import java.io.InputStream
import java.security.MessageDigest

private const val HEX = "0123456789abcdef"
private const val CHUNK_BYTES = 1 shl 16

/** These bytes as lower-case hexadecimal digits: how a digest stands in addresses and file names. */
public fun ByteArray.toHex(): String =
    buildString(2 * size) {
        for (byte in this@toHex) {
            append(HEX[(byte.toInt() shr 4) and 15])
            append(HEX[byte.toInt() and 15])
        }
    }

internal fun newSha256(): MessageDigest = MessageDigest.getInstance("SHA-256")

internal fun sha256(bytes: ByteArray): ByteArray = newSha256().digest(bytes)

/** SHA-256, 32 bytes, of all that is left of a stream, which stays open. */
internal fun sha256(stream: InputStream): ByteArray {
    val digest = newSha256()
    val chunk = ByteArray(CHUNK_BYTES)
    while (true) {
        val count = stream.read(chunk)
        if (count < 0) return digest.digest()
        digest.update(chunk, 0, count)
    }
}
