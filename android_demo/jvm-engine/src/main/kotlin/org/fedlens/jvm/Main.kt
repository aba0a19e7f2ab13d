@file:JvmName("Main")

package org.fedlens.jvm

import org.fedlens.sdk.Callbacks
import org.fedlens.sdk.ClientState
import org.fedlens.sdk.Event
import org.fedlens.sdk.FedLensClient
import org.fedlens.sdk.FedLensException
import java.io.IOException
import java.util.concurrent.CountDownLatch
import kotlin.system.exitProcess

private const val DONE = 0
private const val FAILED = 1
private const val BAD_USAGE = 2

/** Take part in a federation with the photos of a folder; `--help` says how. */
public fun main(arguments: Array<String>) {
    exitProcess(run(arguments))
}

private fun run(arguments: Array<String>): Int {
    try {
        val options = Options.parse(arguments)
        if (options == null) {
            println(Options.USAGE)
            return DONE
        }
        return takePart(options)
    } catch (usage: BadUsage) {
        return complain("${usage.message}; --help lists the options", BAD_USAGE)
    } catch (failure: FedLensException) {
        return complain(failure.message.orEmpty(), FAILED)
    }
}

private fun takePart(options: Options): Int {
    val album = FolderAlbum(options.album)
    val client = FedLensClient(options.server, options.state, album, JvmPlatform(options.floors), options.settings)
    val printer = Printer()
    val running = client.start(printer, options.rounds)
    Runtime.getRuntime().addShutdownHook(
        Thread {
            running.cancel()
            printer.ended.await()
            client.close()
        },
    )
    printer.ended.await()
    client.close()
    return when (val error = printer.error) {
        null -> if (options.rounds == null) DONE else statusOf(printer.last)
        is FedLensException, is IOException -> complain(error.message.orEmpty(), FAILED)
        else -> complain(error.stackTraceToString(), FAILED)
    }
}

/** The exit status after the last of a limited number of rounds. */
private fun statusOf(last: Event.Outcome?): Int =
    when (last) {
        is Event.RoundFailed -> complain("round ${last.round} was given up: ${last.detail}", FAILED)
        is Event.RoundRefused -> complain("round ${last.round} was refused: ${last.detail}", FAILED)
        else -> DONE
    }

private fun complain(
    message: String,
    status: Int,
): Int {
    System.err.println("fedlens: $message")
    return status
}

/** Callbacks that print every event and state as a line. */
private class Printer : Callbacks {
    val ended = CountDownLatch(1)

    @Volatile
    var last: Event.Outcome? = null
        private set

    @Volatile
    var error: Exception? = null
        private set

    override fun onEvent(event: Event) {
        if (event is Event.Outcome) last = event
        print(lineOf(event))
    }

    override fun onState(state: ClientState) {
        print(lineOf(state))
    }

    override fun onEnd(error: Exception?) {
        this.error = error
        ended.countDown()
    }

    private fun print(line: String) {
        println(line)
        System.out.flush()
    }
}
