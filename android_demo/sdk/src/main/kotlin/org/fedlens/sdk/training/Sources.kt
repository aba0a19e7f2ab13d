package org.fedlens.sdk.training

import org.fedlens.proto.v1.BlobSet
import org.fedlens.proto.v1.Dtype
import org.fedlens.proto.v1.LocalPlan
import org.fedlens.proto.v1.Manifest
import org.fedlens.proto.v1.ReferenceBinding
import org.fedlens.proto.v1.SetSource
import org.fedlens.proto.v1.StartRule
import org.fedlens.sdk.AssignmentException
import org.fedlens.sdk.AssignmentException.Reason
import org.fedlens.sdk.Manifests
import org.fedlens.sdk.blob.FloatTensor
import org.fedlens.sdk.blob.Tensor

/** Tensors by name; those of a blob are read from it on demand. */
internal typealias Tensors = Map<String, Tensor>

/**
 * The sources of tensors for local training: client state, or downloads if no client state fits the bundle.
 *
 * Client state may belong to another bundle: a client whose models change receives their bundle.
 *
 * @param downloads Downloaded sets by name.
 * @param clientState Client state by name, null if there is none; called once per name.
 */
internal class Sources(
    private val manifest: Manifest,
    private val downloads: Map<String, Tensors>,
    private val clientState: (String) -> Tensors?,
) {
    private val tensors = manifest.tensorsList.associateBy { it.name }
    private val found = HashMap<String, Tensors?>()

    /** Names of the downloads that the start rules and references of a plan read. */
    fun downloaded(plan: LocalPlan): Set<String> {
        val read = shares(plan.startList) + plan.referencesList.filter { it.hasSet() }.map { it.set to referred(it) }
        return read
            .filter { (source, names) -> names.isNotEmpty() && usable(source, names) == null }
            .mapTo(HashSet()) { (source, _) -> source.download }
    }

    /**
     * Every exchangeable tensor, each from the first rule that selects it.
     *
     * @throws AssignmentException A tensor is missing, or differs from the bundle's in type or shape.
     */
    fun start(rules: List<StartRule>): Tensors {
        val weights = LinkedHashMap<String, Tensor>()
        for ((source, names) in shares(rules)) weights += take(source, names)
        val missing = (tensors.keys - weights.keys).minOrNull()
        if (missing != null) {
            throw AssignmentException(Reason.UNSUPPORTED, "no start rule selects tensor '$missing' of the bundle")
        }
        return weights
    }

    /**
     * The tensors of a reference.
     *
     * @param counts Number of train photos of each class.
     * @throws AssignmentException See [start].
     */
    fun reference(
        binding: ReferenceBinding,
        start: Tensors,
        counts: LongArray,
    ): Tensors =
        when (binding.sourceCase) {
            ReferenceBinding.SourceCase.LABEL_COUNTS -> {
                val values = FloatArray(counts.size) { counts[it].toFloat() }
                mapOf(LABEL_COUNTS to FloatTensor.of(listOf(counts.size.toLong()), values))
            }
            ReferenceBinding.SourceCase.START -> referred(binding).associateWith(start::getValue)
            else -> take(binding.set, referred(binding))
        }

    /** The source of each rule, with the tensors that no earlier rule selects. */
    private fun shares(rules: List<StartRule>): List<Pair<SetSource, List<String>>> {
        val taken = HashSet<String>()
        return rules.map { rule ->
            rule.source to Manifests.select(manifest.tensorsList, rule.tensors).map { it.name }.filter(taken::add)
        }
    }

    private fun referred(binding: ReferenceBinding): List<String> =
        manifest.referencesList.first { it.name == binding.name }.tensorsList

    /** The client state of a source; null if there is none, or if it does not fit and a download replaces it. */
    private fun usable(
        source: SetSource,
        names: List<String>,
    ): Tensors? {
        if (source.kept.isEmpty()) return null
        if (source.kept !in found) found[source.kept] = clientState(source.kept)
        val set = found[source.kept]
        if (set == null || source.download.isEmpty()) return set
        return set.takeIf { names.all { name -> fault(set, name) == null } }
    }

    private fun take(
        source: SetSource,
        names: List<String>,
    ): Tensors {
        if (names.isEmpty()) return emptyMap()
        val state = usable(source, names)
        val what = if (state == null) "downloaded set '${source.download}'" else "client state '${source.kept}'"
        if (state == null && source.download.isEmpty()) {
            throw AssignmentException(Reason.INTERNAL, "there is no client state '${source.kept}' yet")
        }
        val set =
            state ?: downloads[source.download] ?: throw AssignmentException(Reason.UNSUPPORTED, "there is no $what")
        return names.associateWith { name ->
            fault(set, name)?.let { throw AssignmentException(Reason.UNSUPPORTED, what + it) }
            set.getValue(name)
        }
    }

    /** The fault of a tensor in a set, worded to follow the set's name; null if it has none. */
    private fun fault(
        set: Tensors,
        name: String,
    ): String? {
        val wanted = tensors.getValue(name)
        val tensor = set[name] ?: return " has no tensor '$name'"
        val type = if (tensor is FloatTensor) "float32" else "int64"
        val wantedType = if (wanted.dtype == Dtype.DTYPE_FLOAT32) "float32" else "int64"
        if (tensor.shape == wanted.shapeList && type == wantedType) return null
        return ": tensor '$name' is $type${tensor.shape}, the bundle has $wantedType${wanted.shapeList}"
    }

    companion object {
        /** Tensor name used by the label-count reference. */
        const val LABEL_COUNTS = "label_counts"

        /** The sets that can be downloaded, by name: these and the bundle's initial weights. */
        fun available(
            sets: List<BlobSet>,
            manifest: Manifest,
        ): Map<String, BlobSet> = (listOf(Manifests.initialSet(manifest)) + sets).associateBy { it.name }

        /** Names of the downloads that a plan reads; a fallback only if no client state fits. */
        fun needed(
            plan: LocalPlan,
            manifest: Manifest,
            clientState: (String) -> Tensors?,
        ): Set<String> {
            val read = Sources(manifest, emptyMap(), clientState).downloaded(plan)
            return read + plan.extractorsList + plan.upload.baseSet - ""
        }
    }
}
