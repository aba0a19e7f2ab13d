package org.fedlens.sdk.training

import com.google.protobuf.ByteString
import kotlinx.coroutines.CoroutineDispatcher
import kotlinx.coroutines.withContext
import org.fedlens.proto.v1.LocalPlan
import org.fedlens.sdk.Bundle
import org.fedlens.sdk.Policy
import org.fedlens.sdk.engine.Engine
import org.fedlens.sdk.store.Pins
import java.io.Closeable

/**
 * The bundle in use with its engine and its pinned parts, which are kept for the next use of the same bundle.
 *
 * @param trust Trust in publishers of bundles; null: the server is trusted.
 * @param engineOf Creates the engine of a bundle.
 * @param worker Dispatcher for reading files and running programs.
 */
internal class OpenBundle(
    private val trust: BundleTrust?,
    private val engineOf: (Bundle) -> Engine,
    private val worker: CoroutineDispatcher,
) : Closeable {
    private var bundle: Bundle? = null
    private var engine: Engine? = null
    private var parts: Pins? = null

    // Digests of the parts that `parts` pins in the cache.
    private val held = HashSet<ByteString>()

    /** The bundle with the digest [id], if it may be used so. */
    suspend fun open(
        id: ByteString,
        statement: ByteString,
        trains: Boolean,
        policy: Policy,
        fetching: Fetching,
    ): Bundle {
        val digest = id.toByteArray()
        Requirements.checkPinned(digest, policy)
        if (trust != null) withContext(worker) { trust.check(digest, statement.toByteArray(), trains) }
        bundle?.let { if (it.id.contentEquals(digest)) return it }
        withContext(worker) { close() }
        val opened = fetching.bundle(digest)
        Requirements.checkBundle(opened.manifest)
        bundle = opened
        return opened
    }

    /** Obtain and pin the parts of the open [bundle] that a plan needs; the digests of all that are pinned. */
    suspend fun obtainParts(
        bundle: Bundle,
        plan: LocalPlan,
        fetching: Fetching,
    ): Set<ByteString> {
        val pins = parts ?: Pins().also { parts = it }
        fetching.parts(bundle, plan, pins, held)
        return held
    }

    /** The engine of the open [bundle]. */
    fun engine(bundle: Bundle): Engine = engine ?: engineOf(bundle).also { engine = it }

    /** Close the bundle and its engine. No call may be under way. */
    override fun close() {
        engine?.close()
        engine = null
        parts?.close()
        parts = null
        held.clear()
        bundle = null
    }
}
