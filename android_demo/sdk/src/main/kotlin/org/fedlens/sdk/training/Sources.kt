package org.fedlens.sdk.training

import org.fedlens.proto.v1.BlobSet
import org.fedlens.proto.v1.LocalPlan
import org.fedlens.proto.v1.Manifest
import org.fedlens.proto.v1.Source
import org.fedlens.sdk.AssignmentException
import org.fedlens.sdk.AssignmentException.Reason
import org.fedlens.sdk.Manifests
import org.fedlens.sdk.blob.FloatTensor
import org.fedlens.sdk.blob.Tensor
import org.fedlens.sdk.blob.spec
import org.fedlens.sdk.plan.LABEL_COUNTS
import org.fedlens.sdk.plan.Plans
import org.fedlens.sdk.plan.Use

/** Tensors by name; those of a blob are read from it on demand. */
internal typealias Tensors = Map<String, Tensor>

/**
 * The sources of a local plan's tensors: values, downloads, client state, and label counts.
 *
 * Client state may belong to another bundle, because a client can name other models at any time; then, or where there
 * is none yet, the other source of the plan stands in for it.
 *
 * @param downloads Downloaded sets by name.
 * @param clientState Client state by name, null if there is none; called once per name.
 * @param values Made by earlier instructions, by name.
 * @param labelCounts Number of train photos of each class; null where none are known.
 */
internal class Sources(
    private val downloads: Map<String, Tensors>,
    private val clientState: (String) -> Tensors?,
    private val values: Map<String, Tensors> = emptyMap(),
    private val labelCounts: LongArray? = null,
) {
    private val found = HashMap<String, Tensors?>()

    /**
     * The tensors of a use; null where an optional one finds nothing that fits.
     *
     * @throws AssignmentException A tensor is missing, or differs in type or shape.
     */
    fun take(use: Use): Tensors? {
        // A rule whose tensors earlier ones took reads nothing, and its source was not fetched.
        if (use.tensors.isEmpty()) return emptyMap()
        usableState(use)?.let { return it.only(use) }
        val (other, what) = other(use.source)
        val fault = if (other == null) "there is no $what" else fault(use, other)?.let { what + it }
        if (other != null && fault == null) return other.only(use)
        if (use.isOptional) return null
        throw AssignmentException(Reason.UNSUPPORTED, fault.orEmpty())
    }

    /** The client state of a use, if every tensor of it fits. */
    private fun usableState(use: Use): Tensors? {
        val name = use.source.state
        if (name.isEmpty() || use.tensors.isEmpty()) return null
        if (name !in found) found[name] = clientState(name)
        return found[name]?.takeIf { fault(use, it) == null }
    }

    /** The source that stands in for client state, and its name for messages. */
    private fun other(source: Source): Pair<Tensors?, String> =
        when (source.otherCase) {
            Source.OtherCase.VALUE -> values[source.value] to "value '${source.value}'"
            Source.OtherCase.DOWNLOAD -> downloads[source.download] to "downloaded set '${source.download}'"
            Source.OtherCase.LABEL_COUNTS -> labelCounts?.let(::tensors) to "label counts"
            else -> null to "client state '${source.state}' that fits"
        }

    companion object {
        /** The sets that can be downloaded, by name: these and the bundle's initial weights. */
        fun available(
            sets: List<BlobSet>,
            manifest: Manifest,
        ): Map<String, BlobSet> = (listOf(Manifests.initialSet(manifest)) + sets).associateBy { it.name }

        /** Names of the downloads that a plan reads; without stand-ins for client state that fits. */
        fun needed(
            plan: LocalPlan,
            manifest: Manifest,
            clientState: (String) -> Tensors?,
        ): Set<String> {
            val sources = Sources(emptyMap(), clientState)
            val read =
                Plans.uses(plan, manifest).filter { it.tensors.isNotEmpty() && sources.usableState(it) == null }
            return read.map { it.source.download }.toSet() + plan.extractorsList + plan.uploadsList.map { it.base } - ""
        }

        private fun tensors(counts: LongArray): Tensors {
            val values = FloatArray(counts.size) { counts[it].toFloat() }
            return mapOf(LABEL_COUNTS to FloatTensor.of(listOf(counts.size.toLong()), values))
        }

        private fun Tensors.only(use: Use): Tensors = use.tensors.associate { it.name to getValue(it.name) }

        /** The first fault of a set, worded to follow the set's name; null if it has none. */
        private fun fault(
            use: Use,
            set: Tensors,
        ): String? =
            use.tensors.firstNotNullOfOrNull { wanted ->
                val found = set[wanted.name]?.spec(wanted.name)
                when (found) {
                    wanted -> null
                    null -> " has no tensor '${wanted.name}'"
                    else -> ": tensor '${wanted.name}' is ${found.form}, needed is ${wanted.form}"
                }
            }
    }
}
