package org.fedlens.sdk.engine

import org.fedlens.sdk.EngineException
import org.fedlens.sdk.EngineException.Reason
import java.io.IOException

internal fun unusable(
    message: String,
    cause: Throwable? = null,
): Nothing = throw EngineException(Reason.BUNDLE_UNUSABLE, message, cause)

internal fun badInput(message: String): Nothing = throw EngineException(Reason.BAD_INPUT, message)

/** The failure to read a program, without the path: the server receives it, and a path may contain the owner's name. */
internal fun unreadable(
    program: String,
    cause: IOException,
): EngineException = EngineException(Reason.BUNDLE_UNUSABLE, "program '$program' cannot be read", cause)
