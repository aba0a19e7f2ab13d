package org.fedlens.sdk

/** The result of [read], or null if it ends in a named error; any other exception fails the test. */
fun <T : Any> orNamedError(read: () -> T): T? =
    try {
        read()
    } catch (error: FedLensException) {
        check(!error.message.isNullOrBlank()) { "${error.reason} says nothing" }
        null
    }
