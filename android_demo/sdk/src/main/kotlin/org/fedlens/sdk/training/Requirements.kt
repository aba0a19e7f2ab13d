package org.fedlens.sdk.training

import org.fedlens.proto.v1.Answer
import org.fedlens.proto.v1.Assignment
import org.fedlens.proto.v1.BundleClass
import org.fedlens.proto.v1.Capabilities
import org.fedlens.proto.v1.ClientStatistic
import org.fedlens.proto.v1.LocalPlan
import org.fedlens.proto.v1.Manifest
import org.fedlens.proto.v1.ProgramFormat
import org.fedlens.proto.v1.ReferenceBinding
import org.fedlens.proto.v1.SetSource
import org.fedlens.proto.v1.SlotKind
import org.fedlens.proto.v1.Stage
import org.fedlens.sdk.AssignmentException
import org.fedlens.sdk.AssignmentException.Reason
import org.fedlens.sdk.KeyedHash
import org.fedlens.sdk.Manifests
import org.fedlens.sdk.Policy
import org.fedlens.sdk.blob.BlobWriter
import org.fedlens.sdk.engine.unfitForPhones
import org.fedlens.sdk.store.NoisyAnswers
import org.fedlens.sdk.toHex

/** The checks that this client can and may carry out an assignment, made before anything is fetched or trained. */
internal object Requirements {
    /** The format of the programs that this client runs. */
    val FORMAT = ProgramFormat.PROGRAM_FORMAT_PTE

    /** The capabilities that a client enrols with; [models] are those that it accepts, empty: any. */
    fun capabilities(models: List<String>): Capabilities =
        Capabilities
            .newBuilder()
            .addFormats(FORMAT)
            .addBundleClasses(BundleClass.BUNDLE_CLASS_FROZEN_BACKBONE)
            .addAllModels(models)
            .build()

    /**
     * Refuse a bundle that the client's owner has not pinned, for any use.
     *
     * @throws AssignmentException With reason `POLICY`.
     */
    fun checkPinned(
        bundle: ByteArray,
        policy: Policy,
    ) {
        val (name, pinned) = bundle.toHex() to policy.bundles
        permit(pinned == null || name in pinned) { "bundle $name is not among the pinned ones" }
    }

    /**
     * Refuse what the client's owner forbids, regardless of the bundle.
     *
     * @throws AssignmentException With reason `POLICY`.
     */
    fun checkPolicy(
        assignment: Assignment,
        policy: Policy,
    ) {
        val plan = assignment.localPlan
        val statistics = plan.statistics()
        val evaluation = plan.evaluation
        val evaluates = evaluation.atStart || evaluation.atEnd || evaluation.fineTuningCount > 0
        permit(policy.upload || !plan.hasUpload()) { "trained weights are not uploaded" }
        permit(
            policy.answerClassCounts || ClientStatistic.KindCase.CLASS_COUNTS !in statistics,
        ) { "class counts are not answered" }
        permit(policy.answerEvaluation || !evaluates) { "evaluation results are not answered" }
        permit(policy.answerConfusion || ClientStatistic.KindCase.CONFUSION !in statistics) {
            "confusion matrices are not answered"
        }
        if (ClientStatistic.KindCase.LABEL_DISTRIBUTION in statistics) {
            checkLabelDistribution(plan, policy)
            permit(statistics.none(EXACT::containsKey) && !evaluates) {
                "nothing measured exactly is answered beside a label distribution, whose noise it would undo"
            }
        }
    }

    /**
     * Refuse exact answers about classes for which this server has a noisy answer, from any task.
     *
     * @throws AssignmentException With reason `POLICY`.
     */
    fun checkEarlierAnswers(
        plan: LocalPlan,
        manifest: Manifest,
        noisyAnswers: NoisyAnswers,
        policy: Policy,
    ) {
        val exact = plan.statistics().firstNotNullOfOrNull(EXACT::get) ?: return
        permit(policy.answerExactlyAfterNoise || !noisyAnswers.has(manifest.classNamesList)) {
            "$exact are not answered to a server that has a label distribution of the same classes, whose noise they " +
                "would undo"
        }
    }

    /**
     * Refuse a bundle that phones cannot run.
     *
     * @throws AssignmentException With reason `BUNDLE`.
     */
    fun checkBundle(manifest: Manifest) {
        unfitForPhones(manifest)?.let { throw AssignmentException(Reason.BUNDLE, it) }
    }

    /**
     * Refuse an assignment that this version does not support; the message names the first reason.
     *
     * @throws AssignmentException With reason `UNSUPPORTED`.
     */
    fun check(
        assignment: Assignment,
        manifest: Manifest,
    ) {
        val plan = assignment.localPlan
        val sets = assignment.setsList.mapTo(HashSet()) { it.name } + Manifests.INITIAL
        need(assignment.seed.size() == KeyedHash.DIGEST_BYTES) { "a seed of ${assignment.seed.size()} bytes" }
        need(plan.startCount > 0) { "a local plan without start rules" }
        for (rule in plan.startList) checkSource(rule.source, sets)
        checkStatistics(plan)
        checkAnswer(assignment)
        checkReferences(plan, manifest, sets)
        need(plan.extractorsCount == manifest.concatenated) {
            "${plan.extractorsCount} extractors; the bundle takes ${manifest.concatenated} side by side"
        }
        for (stage in plan.stagesList + plan.evaluation.fineTuningList) checkStage(stage, manifest)
        val names = plan.keepList.map { it.set }
        need("" !in names && names.toSet().size == names.size) { "client state must have names, each once: $names" }
    }

    private fun checkLabelDistribution(
        plan: LocalPlan,
        policy: Policy,
    ) {
        permit(policy.answerLabelDistribution) { "label distributions are not answered" }
        val (least, most) = policy.leastEpsilon to policy.mostEpsilon
        for (statistic in plan.statisticsList.filter { it.hasLabelDistribution() }) {
            val epsilon = statistic.labelDistribution.epsilon
            permit(epsilon in least..most) {
                "a label distribution with epsilon ${number(epsilon)}; answered are ${number(least)} to ${number(most)}"
            }
        }
    }

    private fun checkStatistics(plan: LocalPlan) {
        val seen = HashSet<ClientStatistic.KindCase>()
        for (statistic in plan.statisticsList) {
            val kind = statistic.kindCase
            need(kind != ClientStatistic.KindCase.KIND_NOT_SET) { "the question 'unset'" }
            need(seen.add(kind)) { "the question '${kind.name.lowercase()}' asked twice" }
            val epsilon = statistic.labelDistribution.epsilon
            need(kind != ClientStatistic.KindCase.LABEL_DISTRIBUTION || NoisyAnswers.isUsable(epsilon)) {
                "a label distribution with epsilon ${number(epsilon)}, which must be above 0 and finite"
            }
        }
    }

    private fun checkAnswer(assignment: Assignment) {
        need(assignment.answer == Answer.ANSWER_UPDATE || assignment.answer == Answer.ANSWER_EVALUATION) {
            "an answer of kind ${assignment.answerValue}"
        }
        if (!assignment.localPlan.hasUpload()) return
        val upload = assignment.localPlan.upload
        need(assignment.answer != Answer.ANSWER_EVALUATION) { "an upload with an evaluation" }
        need(BlobWriter.floatsOf(upload.codec) != null) {
            "upload codec ${if (upload.codecValue == 0) "unset" else upload.codecValue.toString()}"
        }
        need(upload.baseSet.isEmpty() || assignment.setsList.any { it.name == upload.baseSet }) {
            "an upload as difference from set '${upload.baseSet}', which is not among the assignment's"
        }
    }

    private fun checkReferences(
        plan: LocalPlan,
        manifest: Manifest,
        sets: Set<String>,
    ) {
        val known = manifest.referencesList.map { it.name }
        val bound = plan.referencesList.map { it.name }
        need(bound.toSet().size == bound.size) { "a reference bound twice: $bound" }
        val unknown = (bound - known.toSet()).minOrNull()
        need(unknown == null) { "reference '$unknown', which the bundle does not have" }
        val missing = (known - bound.toSet()).minOrNull()
        need(missing == null || plan.stagesCount + plan.evaluation.fineTuningCount == 0) {
            "a local plan that leaves the bundle's reference '$missing' unbound"
        }
        for (binding in plan.referencesList) {
            when (binding.sourceCase) {
                ReferenceBinding.SourceCase.SET -> checkSource(binding.set, sets)
                ReferenceBinding.SourceCase.START, ReferenceBinding.SourceCase.LABEL_COUNTS -> Unit
                else -> need(false) { "reference '${binding.name}' without a source" }
            }
        }
    }

    private fun checkStage(
        stage: Stage,
        manifest: Manifest,
    ) {
        val program = manifest.programsList.firstOrNull { it.name == stage.program }
        need(program != null) {
            "program '${stage.program}'; the bundle has ${manifest.programsList.joinToString { it.name }}"
        }
        need(program.outputsList.any { it.kind == SlotKind.SLOT_KIND_WEIGHT }) {
            "program '${stage.program}' as a stage; it trains nothing"
        }
        need(stage.lengthCase != Stage.LengthCase.LENGTH_NOT_SET) { "a stage without epochs or steps" }
        for (value in stage.hyperValuesList) {
            val allowed = manifest.hyperParametersList.firstOrNull { it.name == value.name }
            need(allowed != null) { "hyper-parameter '${value.name}', which the bundle does not have" }
            need(value.value in allowed.minimum..allowed.maximum) {
                "hyper-parameter '${value.name}' = ${number(value.value)}; allowed are ${number(allowed.minimum)} to " +
                    number(allowed.maximum)
            }
        }
    }

    private fun checkSource(
        source: SetSource,
        sets: Set<String>,
    ) {
        need(source.kept.isNotEmpty() || source.download.isNotEmpty()) { "a source that names no set" }
        need(source.download.isEmpty() || source.download in sets) {
            "set '${source.download}', which is not among the assignment's"
        }
    }

    /** Statistics with exact values, and their names. */
    private val EXACT =
        mapOf(
            ClientStatistic.KindCase.CLASS_COUNTS to "class counts",
            ClientStatistic.KindCase.CONFUSION to "confusion matrices",
        )

    private fun LocalPlan.statistics() = statisticsList.mapTo(LinkedHashSet()) { it.kindCase }

    /** A number as people write it: `1`, `0.5`, `nan`, `inf`. */
    private fun number(value: Double): String =
        when {
            value.isNaN() -> "nan"
            value.isInfinite() -> if (value > 0) "inf" else "-inf"
            else -> value.toString().removeSuffix(".0")
        }

    @OptIn(kotlin.contracts.ExperimentalContracts::class)
    private inline fun need(
        condition: Boolean,
        what: () -> String,
    ) {
        kotlin.contracts.contract { returns() implies condition }
        if (!condition) throw AssignmentException(Reason.UNSUPPORTED, "not supported: ${what()}")
    }

    private inline fun permit(
        condition: Boolean,
        what: () -> String,
    ) {
        if (!condition) throw AssignmentException(Reason.POLICY, "this client's policy: ${what()}")
    }
}
