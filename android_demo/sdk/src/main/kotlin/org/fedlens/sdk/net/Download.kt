package org.fedlens.sdk.net

import okhttp3.Response
import org.fedlens.sdk.StateException
import org.fedlens.sdk.TransportException
import java.io.File
import java.io.IOException
import java.io.RandomAccessFile
import java.net.HttpURLConnection.HTTP_OK
import java.net.HttpURLConnection.HTTP_PARTIAL

/**
 * One attempt to fetch the missing bytes of a blob.
 *
 * @param into File with the bytes so far; may be empty.
 * @param maxBytes Maximum size of the blob in bytes.
 */
internal class Download(
    private val into: File,
    private val maxBytes: Long,
) {
    /** Number of bytes before the attempt. */
    val have: Long = into.length()

    /**
     * Write the response to the file; if the rest does not arrive, the bytes so far stay.
     *
     * @throws TryAgain Bytes are missing, or the file was emptied because the server does not have the requested range.
     * @throws TransportException The response is not what was asked for. The file is unchanged, or empty if continuing
     *     from there would fail again.
     * @throws StateException The file cannot be written.
     * @throws IOException Reading from the network failed.
     */
    fun append(response: Response) {
        if (response.code == RANGE_NOT_SATISFIABLE && have > 0) {
            startAnew()
            throw TryAgain("the server has no such range; starting from the first byte", atOnce = true)
        }
        if (response.code != HTTP_OK && response.code != HTTP_PARTIAL) throw Responses.failure(response)
        Responses.requireType(response, BLOB_TYPE)
        val start = if (response.code == HTTP_OK) 0L else have
        val end = if (response.code == HTTP_OK) null else rangeEnd(response)
        val file = onDisk { RandomAccessFile(into, "rw") }
        try {
            onDisk { file.setLength(start) }
            onDisk { file.seek(start) }
            val size = copy(response, file, start)
            if (end != null && size < end) throw TryAgain("bytes are missing: ${end - size} of a range did not come")
        } finally {
            onDisk { file.close() }
        }
    }

    /** End of the received range: the offset after its last byte. */
    private fun rangeEnd(response: Response): Long {
        val found = response.header("Content-Range").orEmpty()
        val (first, last) = RANGE.matchEntire(found)?.destructured ?: throw anotherRange(response, found)
        if (first != "$have") throw anotherRange(response, found)
        val end = (last.toLongOrNull() ?: throw anotherRange(response, found)) + 1
        if (end <= have) throw anotherRange(response, found)
        return end
    }

    private fun anotherRange(
        response: Response,
        found: String,
    ): TransportException {
        startAnew()
        return Responses.bad(response, "another range came back ('$found') than the one asked for, from byte $have on")
    }

    private fun startAnew() = onDisk { RandomAccessFile(into, "rw").use { it.setLength(0) } }

    private fun copy(
        response: Response,
        file: RandomAccessFile,
        start: Long,
    ): Long {
        val source = checkNotNull(response.body) { "OkHttp gives every answer of a call a body" }.source()
        val chunk = ByteArray(CHUNK_BYTES)
        var size = start
        while (true) {
            val count = source.read(chunk)
            if (count < 0) return size
            size += count
            if (size > maxBytes) {
                onDisk { file.setLength(0) }
                throw Responses.bad(response, "more than the $maxBytes bytes that were announced")
            }
            onDisk { file.write(chunk, 0, count) }
        }
    }

    /** Turn disk failures into a [StateException], to tell them from network failures. */
    private fun <T> onDisk(access: () -> T): T =
        try {
            access()
        } catch (error: IOException) {
            throw StateException(StateException.Reason.NOT_WRITABLE, "$into cannot be written: ${error.message}", error)
        }

    private companion object {
        const val RANGE_NOT_SATISFIABLE = 416
        const val CHUNK_BYTES = 8 shl 10
        const val BLOB_TYPE = "application/octet-stream"
        val RANGE = Regex("""bytes (\d{1,18})-(\d{1,18})/(?:\d+|\*)""")
    }
}
