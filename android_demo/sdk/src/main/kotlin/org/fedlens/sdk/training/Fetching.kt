package org.fedlens.sdk.training

import com.google.protobuf.ByteString
import kotlinx.coroutines.currentCoroutineContext
import kotlinx.coroutines.ensureActive
import org.fedlens.proto.v1.BlobSet
import org.fedlens.proto.v1.LocalPlan
import org.fedlens.proto.v1.Rows
import org.fedlens.sdk.AssignmentException
import org.fedlens.sdk.AssignmentException.Reason
import org.fedlens.sdk.BlobException
import org.fedlens.sdk.Bundle
import org.fedlens.sdk.Event
import org.fedlens.sdk.KeyedHash
import org.fedlens.sdk.ManifestException
import org.fedlens.sdk.Manifests
import org.fedlens.sdk.blob.Blob
import org.fedlens.sdk.plan.Plans
import org.fedlens.sdk.store.Cache
import org.fedlens.sdk.store.Fetch
import org.fedlens.sdk.store.Pins
import org.fedlens.sdk.store.Shortcut
import org.fedlens.sdk.store.Wanted
import org.fedlens.sdk.toHex
import java.io.FileNotFoundException
import java.io.IOException

/** Signals that a part or blob is not in the cache, and is not to be fetched. */
internal class NotHere : Exception()

/**
 * The download of what an assignment needs, which stays in the cache while it is used.
 *
 * @param fetch The source of what the cache lacks; null: none, which then throws [NotHere].
 */
internal class Fetching(
    private val cache: Cache,
    private val fetch: Fetch?,
    private val emit: (Event) -> Unit,
) {
    /**
     * The bundle whose manifest has this digest; its parts are not fetched.
     *
     * @throws AssignmentException With reason `BUNDLE`: the bundle is not usable.
     */
    suspend fun bundle(digest: ByteArray): Bundle {
        while (true) {
            currentCoroutineContext().ensureActive()
            if (fetch == null) {
                if (!cache.has(digest)) throw NotHere()
            } else {
                cache.obtain(Wanted(digest, Manifests.MAX_BYTES.toLong()), isExact = false, fetch)
            }
            try {
                return Bundle.of(cache.folder, cache.file(digest).readBytes())
            } catch (_: FileNotFoundException) {
                // Evicted before it was read: fetch it again.
            } catch (error: ManifestException) {
                throw AssignmentException(Reason.BUNDLE, error.message.orEmpty(), error)
            }
        }
    }

    /**
     * Fetch what a plan needs of the bundle, and the programs for features, views and predictions; keep them until [pins]
     * is closed.
     *
     * @param held Digests that [pins] keeps already; fetched ones are added.
     */
    suspend fun parts(
        bundle: Bundle,
        plan: LocalPlan,
        pins: Pins,
        held: MutableSet<ByteString>,
    ) {
        val sizes = bundle.manifest.partsList.associate { it.sha256 to it.size }
        val names = Plans.programs(plan) + ALWAYS
        val files =
            bundle.manifest.programsList
                .filter { it.name in names }
                .flatMap { program -> program.filesList.filter { it.format == Requirements.FORMAT } }
                .map { it.sha256 }
        val rows = listOf(bundle.manifest.public.sha256).filter { Plans.readsRows(plan, Rows.ROWS_PUBLIC) }
        val wanted = (files + rows).filter { it !in held }.distinct()
        hold(wanted.map { Wanted(it.toByteArray(), sizes.getValue(it)) }, pins)
        held += wanted
    }

    /** Fetch these sets, as deltas if possible, and keep them until [pins] is closed. */
    suspend fun sets(
        entries: Collection<BlobSet>,
        pins: Pins,
    ) {
        val restoring = fetch?.let { Restoring(cache, it, ::downloaded) }
        val wanted =
            entries.distinctBy { it.sha256 }.map { entry ->
                val shortcut = restoring?.let { Shortcut { file -> it.restore(entry, file) } }
                Wanted(entry.sha256.toByteArray(), entry.size, shortcut.takeIf { entry.hasDifference() })
            }
        hold(wanted, pins)
    }

    /**
     * The tensors of a set that is in the cache.
     *
     * @throws AssignmentException The blob cannot be read, or is a delta.
     */
    fun read(entry: BlobSet): Blob {
        val digest = entry.sha256.toByteArray()
        val found =
            try {
                Blob.open(cache.file(digest), digest)
            } catch (error: BlobException) {
                throw AssignmentException(Reason.INTERNAL, "set '${entry.name}': ${error.message}", error)
            } catch (error: IOException) {
                throw AssignmentException(Reason.INTERNAL, "set '${entry.name}' cannot be read from the cache", error)
            }
        found.layout.base?.let { base ->
            throw AssignmentException(
                Reason.UNSUPPORTED,
                "set '${entry.name}' holds the difference to blob ${base.toHex()}; a set must hold whole weights",
            )
        }
        return found
    }

    private suspend fun hold(
        wanted: List<Wanted>,
        pins: Pins,
    ) {
        var total = 0L
        for (size in wanted.map { it.size }) {
            // An unsigned number of 64 bits reads as negative.
            total = if (size < 0 || total > Long.MAX_VALUE - size) Long.MAX_VALUE else total + size
        }
        for (part in wanted) {
            if (part.digest.size != KeyedHash.DIGEST_BYTES || part.size == 0L || total > cache.maxBytes) {
                throw AssignmentException(
                    Reason.UNSUPPORTED,
                    "blob ${part.digest.toHex()} of ${java.lang.Long.toUnsignedString(part.size)} bytes, $total in " +
                        "all; the cache of this client takes up to ${cache.maxBytes}",
                )
            }
        }
        if (fetch == null) {
            if (wanted.any { !cache.holdPresent(it.digest, pins) }) throw NotHere()
            return
        }
        val fetched = cache.hold(wanted, pins, fetch)
        fetched.forEach { downloaded(it.digest, it.size) }
        if (fetched.isNotEmpty() || wanted.any { it.shortcut != null }) cache.trim()
    }

    private fun downloaded(
        digest: ByteArray,
        size: Long,
    ) = emit(Event.Downloaded(digest.toHex(), size))

    private companion object {
        /** Programs that a client runs besides those that a plan names. */
        val ALWAYS = setOf("embed", "extract", "predict", "view")
    }
}
