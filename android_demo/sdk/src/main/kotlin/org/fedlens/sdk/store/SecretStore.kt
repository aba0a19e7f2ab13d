package org.fedlens.sdk.store

import org.fedlens.sdk.StateException

/**
 * The store of the secret that is a client's identity. Whoever has the secret can act as the client.
 *
 * Failures are a [StateException] that says what to do.
 */
public interface SecretStore {
    /** The secret, 32 bytes, created on first use and constant from then on. */
    @Throws(StateException::class)
    public fun secret(): ByteArray

    /** Delete the secret for good; the next secret belongs to another client. */
    @Throws(StateException::class)
    public fun delete()
}
