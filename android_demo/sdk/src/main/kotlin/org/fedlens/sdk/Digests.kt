package org.fedlens.sdk

import java.io.File
import java.io.IOException
import java.security.MessageDigest

private const val BLOCK_BYTES = 1 shl 16

/** These bytes as lower-case hexadecimal digits, the form of a digest in addresses and file names. */
public fun ByteArray.toHex(): String = toHexString()

internal fun newSha256(): MessageDigest = MessageDigest.getInstance("SHA-256")

internal fun sha256(bytes: ByteArray): ByteArray = newSha256().digest(bytes)

/** SHA-256, 32 bytes, of a file. */
@Throws(IOException::class)
internal fun sha256(file: File): ByteArray {
    val digest = newSha256()
    file.forEachBlock(BLOCK_BYTES) { block, count -> digest.update(block, 0, count) }
    return digest.digest()
}
