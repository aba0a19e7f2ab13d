package org.fedlens.jvm

import org.fedlens.sdk.ClientSettings
import org.fedlens.sdk.Policy
import org.fedlens.sdk.Publisher
import org.fedlens.sdk.Publishers
import org.fedlens.sdk.net.Backoff
import org.fedlens.sdk.store.FileSecret
import java.io.File
import java.io.IOException

/** A mistake in the command line; the message is for its author. */
internal class BadUsage(
    message: String,
) : Exception(message)

/** The parsed command line of [main]. */
internal class Options private constructor(
    private val values: Map<String, List<String>>,
) {
    val server: String get() = required("--server")
    val album: File get() = File(required("--album"))
    val state: File get() = File(required("--state"))

    /** Number of rounds to take part in; null: until every task has ended. */
    val rounds: Int? get() = if ("--once" in values) 1 else number("--rounds")?.toInt()

    val settings: ClientSettings
        get() {
            return ClientSettings(
                publishers = publishers(),
                enrolmentToken = token(),
                policy = policy(),
                pins = all("--pin"),
                ca = one("--ca")?.let(::File),
                task = number("--task"),
                models = all("--model"),
                secrets = one("--secret-file")?.let { FileSecret(File(it)) },
                backoff = Backoff(giveUpAfterMs = number("--give-up-after")?.let { it * MS_PER_S }),
                audience = all("--audience").toSet(),
            )
        }

    /** File that remembers what publishers withdrew; null: one in the state folder. */
    val floors: File? get() = one("--floors")?.let(::File)

    private fun publishers(): Publishers {
        val files = all("--publisher")
        if (files.isEmpty() == "--trust-server" !in values) {
            throw BadUsage("give --publisher FILE, or --trust-server to run every bundle that the server names")
        }
        val keys = files.map { Publisher.of(text("--publisher", it)) }
        return if (files.isEmpty()) Publishers.TrustServer else Publishers.Keys { keys }
    }

    private fun policy(): () -> Policy {
        val policy =
            Policy(
                upload = true,
                answerClassCounts = true,
                answerEvaluation = true,
                answerConfusion = true,
                answerLabelDistribution = true,
                allowTables = all("--allow-table").toSet(),
            )
        return { policy }
    }

    private fun token(): String? {
        val file = one("--token-file") ?: return System.getenv(TOKEN_VARIABLE)
        return text("--token-file", file)
    }

    private fun text(
        option: String,
        file: String,
    ): String =
        try {
            File(file).readText().trim()
        } catch (error: IOException) {
            throw BadUsage("$option $file cannot be read: ${error.message}")
        }

    private fun required(name: String): String = one(name) ?: throw BadUsage("$name is missing")

    private fun one(name: String): String? = values[name]?.last()

    private fun all(name: String): List<String> = values[name].orEmpty()

    private fun number(name: String): Long? =
        one(name)?.let { text ->
            text.toLongOrNull()?.takeIf { it in 1..MOST } ?: throw BadUsage("$name is '$text'; give at least 1")
        }

    companion object {
        const val USAGE: String = """usage: java -cp ... org.fedlens.jvm.Main OPTIONS

Takes part in a federation with the photos of a folder, until every task has ended. Each event and each state is a JSON
object on a line of its own. Ctrl-C ends it cleanly; the same command then continues and sends results not yet received.

  --server URL           Address of the server, such as https://127.0.0.1:8443.
  --album DIR            Folder with a sub-folder of photos for each class; it may change.
  --state DIR            Folder for persistent state: secret, outbox, caches.
  --publisher FILE       The .pub file of somebody whose signed bundles may run here; may be given several times.
  --trust-server         Instead of publishers: run every bundle that the server names.
  --audience ID          Application or federation for which bundles are meant here; may be given several times.
  --floors FILE          Remembers what publishers withdrew, for all servers. Default: floors.sqlite3 in the state folder.
  --token-file FILE      File with the enrolment token, needed the first time; or set FEDLENS_ENROLMENT_TOKEN.
  --ca FILE              Certificate (PEM) to trust instead of the system's.
  --pin sha256/BASE64    Public key to require in the server's certificate chain; may be given several times.
  --secret-file FILE     File with the client's secret, created if missing. Default: secret in the state folder.
  --model NAME           Model that this client trains; may be given several times. Default: any.
  --allow-table NAME     Table, such as prototypes, that may be uploaded; may be given several times. Default: none.
  --task ID              Work only for the task with this id.
  --rounds N, --once     End after N rounds, or after one.
  --give-up-after S      End when a request has failed for S seconds. Default: never.

Exit status: 0 success; 1 failure, or the last requested round was given up or refused; 2 bad command line;
130 Ctrl-C."""

        const val TOKEN_VARIABLE: String = "FEDLENS_ENROLMENT_TOKEN"
        private const val MS_PER_S = 1_000L
        private const val MOST = Int.MAX_VALUE.toLong()
        private val FLAGS = setOf("--once", "--trust-server", "--help")
        private val NAMES =
            setOf(
                "--server",
                "--album",
                "--state",
                "--publisher",
                "--audience",
                "--floors",
                "--token-file",
                "--ca",
                "--pin",
                "--secret-file",
                "--model",
                "--allow-table",
                "--task",
                "--rounds",
                "--give-up-after",
            )

        /**
         * Parse a command line; null if it asks for help.
         *
         * @throws BadUsage An option is unknown or lacks its value.
         */
        fun parse(arguments: Array<String>): Options? {
            val values = LinkedHashMap<String, MutableList<String>>()
            val rest = ArrayDeque(arguments.asList())
            while (rest.isNotEmpty()) {
                val name = rest.removeFirst()
                val value =
                    when (name) {
                        in FLAGS -> ""
                        in NAMES -> rest.removeFirstOrNull() ?: throw BadUsage("$name needs a value")
                        else -> throw BadUsage("there is no option '$name'")
                    }
                values.getOrPut(name, ::ArrayList) += value
            }
            return if ("--help" in values) null else Options(values)
        }
    }
}
