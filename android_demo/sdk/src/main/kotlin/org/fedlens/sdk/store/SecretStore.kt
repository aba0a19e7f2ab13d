package org.fedlens.sdk.store

/**
 * Where the secret is that makes a client who it is. Whoever has it is this client.
 *
 * Faults are a [org.fedlens.sdk.StateException] that says what to do.
 */
public interface SecretStore {
    /** The secret, 32 bytes; made when it is asked for the first time, and the same ever after. */
    public fun secret(): ByteArray

    /** Forgets the secret for good; the next one makes another client. */
    public fun delete()
}
