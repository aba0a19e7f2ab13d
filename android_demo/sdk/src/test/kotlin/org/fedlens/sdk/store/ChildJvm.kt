package org.fedlens.sdk.store

import org.fedlens.sdk.StateException
import org.junit.Assert.assertEquals
import org.junit.Assert.assertThrows
import java.io.File

/** A separate process that runs a main class of the tests, with the parent's standard error. */
fun childJvm(
    main: String,
    vararg arguments: String,
    limit: String = "",
): Process {
    val java = File(System.getProperty("java.home"), "bin/java").path
    val command = listOf(java, "-Xmx64m", "-Xshare:auto", "-XX:TieredStopAtLevel=1", main, *arguments)
    // A shell, only to set the limit: `exec` makes it the process that is killed.
    val wrapped = if (limit.isEmpty()) command else listOf("sh", "-c", "$limit; exec \"$@\"", "sh") + command
    return ProcessBuilder(wrapped)
        .apply { environment()["CLASSPATH"] = System.getProperty("java.class.path") }
        .redirectError(ProcessBuilder.Redirect.INHERIT)
        .start()
}

internal fun assertReason(
    reason: StateException.Reason,
    work: () -> Unit,
): String {
    val error = assertThrows(StateException::class.java) { work() }
    assertEquals(error.message, reason, error.reason)
    return error.message.orEmpty()
}

internal fun assertInUse(work: () -> Unit) = assertReason(StateException.Reason.IN_USE, work)
