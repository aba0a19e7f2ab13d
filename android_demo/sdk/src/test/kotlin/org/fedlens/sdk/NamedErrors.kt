package org.fedlens.sdk

/** What [read] gives, or null if it ends in a named error; anything else that it throws fails the test. */
fun <T : Any> orNamedError(read: () -> T): T? =
    try {
        read()
    } catch (error: FedLensException) {
        check(!error.message.isNullOrBlank()) { "${error.reason} says nothing" }
        null
    }
