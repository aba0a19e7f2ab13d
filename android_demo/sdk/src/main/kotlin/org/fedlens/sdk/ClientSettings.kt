package org.fedlens.sdk

import org.fedlens.sdk.model.Adoption
import org.fedlens.sdk.net.Backoff
import org.fedlens.sdk.store.SecretStore
import java.io.File

/**
 * Settings of a client; the defaults are meant for phones.
 *
 * @property publishers Whose bundles may run here.
 * @property enrolmentToken Needed until the server has enrolled this client, and again if the server forgets it.
 * @property policy What the server may learn, by default nothing; read anew for every assignment, and before its result
 *     is stored. A stored result is still sent.
 * @property pins Public keys, one of which the server's certificate chain must hold, each as `sha256/` and the Base64
 *     of its SHA-256; empty: any key.
 * @property ca Certificates (PEM) to trust instead of the system's; null: the system's.
 * @property task The only task to work for; null: any task.
 * @property models Names of the models, as in a bundle, that this client trains; empty: any model.
 * @property secrets Where this client's secret, 32 bytes, is stored; null: a file in the client's folder.
 * @property maxCacheBytes Limit of the blob cache, and separately of the feature cache, so both together take up to
 *     twice as much; the least recently used entries are deleted first.
 * @property backoff How failed requests are repeated; by default without limit.
 * @property holdMs Milliseconds for which the server may hold a check-in until there is work; background jobs do not ask
 *     it to.
 * @property clientVersion Of the app, as its makers count it, 0 to 2^32 - 1; a task may require a least one.
 * @property audience Names of federations for which bundles may be signed; the platform's application id is always one.
 * @property isolation Where bundles' programs run.
 * @property adoption When a newer model takes the place of the one in use for predictions.
 */
public class ClientSettings
    @JvmOverloads
    constructor(
        public val publishers: Publishers,
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
        public val clientVersion: Long = 0,
        public val audience: Set<String> = emptySet(),
        public val isolation: Isolation = Isolation.WHERE_POSSIBLE,
        public val adoption: Adoption = Adoption.ALWAYS,
    ) {
        init {
            require(clientVersion in 0..0xFFFF_FFFFL) { "clientVersion: found $clientVersion, must be 0 to 4294967295" }
        }

        /** A process for bundles' programs. */
        public enum class Isolation {
            /**
             * An isolated process, or if that cannot load programs, another one with the app's rights; in the app's own
             * where the platform has neither.
             */
            WHERE_POSSIBLE,

            /** An isolated process; without one nothing runs, for the reason `RUNTIME_MISSING`. */
            REQUIRED,

            /** The app's own, where a flaw of the runtime lets a hostile program do what the app may, or end it. */
            NONE,
        }

        private companion object {
            const val DEFAULT_CACHE_BYTES = 512L shl 20
            const val DEFAULT_HOLD_MS = 25_000
        }
    }
