package org.fedlens.sdk

import org.fedlens.sdk.net.Backoff
import org.fedlens.sdk.store.SecretStore
import java.io.File

/**
 * How a client takes part; the defaults are meant for phones.
 *
 * @property enrolmentToken Needed until the server knows this client, and when it has lost its memory of it.
 * @property policy What the server may learn; asked anew for every assignment. A result that was computed before is sent.
 * @property pins Where not empty, the server's certificate chain must hold one of these public keys, each as
 *     `sha256/` and the Base64 of its SHA-256.
 * @property ca Certificates (PEM) to trust instead of the system's; null: the system's.
 * @property task Take work of this task alone; null: of any.
 * @property models Names of the models, as in a bundle, that this client trains; none: whatever a task has.
 * @property secrets Where the 32 bytes are kept that are this client's identity; null: a file in the client's folder.
 * @property maxCacheBytes Beyond this the least recently used blobs are deleted, and beyond as many bytes again
 *     features likewise: the two together take up to twice as much of the disk.
 * @property backoff How failed requests are repeated; by default for as long as it takes.
 * @property holdMs How long the server may keep a check-in waiting for work, in milliseconds.
 */
public class ClientSettings(
    public val enrolmentToken: String? = null,
    public val policy: () -> Policy = { Policy() },
    public val pins: List<String> = emptyList(),
    public val ca: File? = null,
    public val task: Long? = null,
    public val models: List<String> = emptyList(),
    public val secrets: SecretStore? = null,
    public val maxCacheBytes: Long = DEFAULT_CACHE_BYTES,
    public val backoff: Backoff = Backoff(),
    public val holdMs: Int = DEFAULT_HOLD_MS,
) {
    private companion object {
        const val DEFAULT_CACHE_BYTES = 512L shl 20
        const val DEFAULT_HOLD_MS = 25_000
    }
}
