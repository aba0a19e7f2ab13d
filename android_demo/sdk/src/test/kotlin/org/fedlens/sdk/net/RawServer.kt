package org.fedlens.sdk.net

import java.io.Closeable
import java.io.IOException
import java.io.InputStream
import java.net.InetAddress
import java.net.ServerSocket
import java.net.Socket
import kotlin.concurrent.thread

/**
 * A server without rules: it passes each connection in turn to [serve] and closes it. It can send what MockWebServer
 * would not.
 */
internal class RawServer(
    private val serve: (Socket) -> Unit,
) : Closeable {
    private val listener = ServerSocket(0, BACKLOG, InetAddress.getByName("127.0.0.1"))
    val url = "http://127.0.0.1:${listener.localPort}"

    init {
        thread(isDaemon = true, name = "RawServer") {
            try {
                while (true) listener.accept().use(::serveOne)
            } catch (_: IOException) {
                // Closed.
            }
        }
    }

    override fun close() = listener.close()

    private fun serveOne(connection: Socket) {
        try {
            serve(connection)
        } catch (_: IOException) {
            // The client has hung up first.
        }
    }

    companion object {
        private const val BACKLOG = 50

        /** A server that reads one request of a connection and responds with these bytes, whatever they are. */
        fun responding(response: () -> ByteArray) =
            RawServer { connection ->
                readRequest(connection.getInputStream())
                connection.getOutputStream().run {
                    write(response())
                    flush()
                }
            }

        /** Reads a whole request, so that closing the connection cuts nothing off; gives its head. */
        fun readRequest(stream: InputStream): String {
            val head = StringBuilder()
            while (!head.endsWith("\r\n\r\n")) {
                val byte = stream.read()
                if (byte < 0) throw IOException("the request ends in its head")
                head.append(byte.toChar())
            }
            val length = Regex("(?i)content-length: (\\d+)").find(head)?.groupValues?.get(1)?.toInt() ?: 0
            if (stream.readNBytes(length).size < length) throw IOException("the request ends in its body")
            return head.toString()
        }
    }
}
