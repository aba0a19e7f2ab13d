package org.fedlens.sdk.store

/**
 * The store of the secret that is a client's identity. Whoever has the secret can act as the client.
 *
 * Failures are a [org.fedlens.sdk.StateException] that says what to do.
 */
public interface SecretStore {
    /** The secret, 32 bytes, created on first use and constant from then on. */
    public fun secret(): ByteArray

    /** Delete the secret for good; the next secret belongs to another client. */
    public fun delete()
}
