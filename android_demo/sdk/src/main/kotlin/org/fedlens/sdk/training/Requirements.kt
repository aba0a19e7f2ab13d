package org.fedlens.sdk.training

import org.fedlens.proto.v1.Answer
import org.fedlens.proto.v1.Assemble
import org.fedlens.proto.v1.Assignment
import org.fedlens.proto.v1.BlobSet
import org.fedlens.proto.v1.BundleClass
import org.fedlens.proto.v1.Capabilities
import org.fedlens.proto.v1.CurrentModel
import org.fedlens.proto.v1.Evaluation
import org.fedlens.proto.v1.Instruction
import org.fedlens.proto.v1.LocalPlan
import org.fedlens.proto.v1.Manifest
import org.fedlens.proto.v1.ProgramFormat
import org.fedlens.proto.v1.Rows
import org.fedlens.proto.v1.Statistic
import org.fedlens.sdk.AssignmentException
import org.fedlens.sdk.AssignmentException.Reason
import org.fedlens.sdk.Batches
import org.fedlens.sdk.KeyedHash
import org.fedlens.sdk.Manifests
import org.fedlens.sdk.Policy
import org.fedlens.sdk.engine.unfitForPhones
import org.fedlens.sdk.plan.PlanCheck
import org.fedlens.sdk.plan.PlanRefused
import org.fedlens.sdk.plan.Plans
import org.fedlens.sdk.plan.batch
import org.fedlens.sdk.store.NoisyAnswers
import org.fedlens.sdk.toHex

/** The checks that this client can and may carry out an assignment, made before anything is fetched or trained. */
internal object Requirements {
    /** The format of the programs that this client runs. */
    val FORMAT = ProgramFormat.PROGRAM_FORMAT_PTE

    /** The capabilities that a client enrols with; [models] are those that it accepts, empty: any. */
    fun capabilities(
        models: List<String>,
        policy: Policy,
    ): Capabilities =
        Capabilities
            .newBuilder()
            .addFormats(FORMAT)
            .addBundleClasses(BundleClass.BUNDLE_CLASS_FROZEN_BACKBONE)
            .addAllModels(models)
            .setPlanFormat(Plans.FORMAT)
            .addAllTables(policy.allowTables.sorted())
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
        val evaluates = plan.evaluationsCount > 0
        permit(policy.upload || plan.uploadsCount == 0) { "trained weights are not uploaded" }
        permit(
            policy.answerClassCounts || Statistic.KindCase.CLASS_COUNTS !in statistics,
        ) { "class counts are not answered" }
        permit(policy.answerEvaluation || !evaluates) { "evaluation results are not answered" }
        permit(policy.answerConfusion || Statistic.KindCase.CONFUSION !in statistics) {
            "confusion matrices are not answered"
        }
        if (Statistic.KindCase.LABEL_DISTRIBUTION in statistics) {
            checkLabelDistribution(plan, policy)
            permit(statistics.none(EXACT::containsKey) && !evaluates) { BESIDE_NOISE }
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
        val exact = (plan.statistics().mapNotNull(EXACT::get) + exactTables(plan, manifest)).firstOrNull() ?: return
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
     * Refuse an assignment that this version, the bundle, the device or the policy does not support; the message names
     * the first reason.
     *
     * @param memory Bytes that a local plan may take.
     * @throws AssignmentException With reason `UNSUPPORTED`, or `POLICY` for a table that is not allowed.
     */
    fun check(
        assignment: Assignment,
        manifest: Manifest,
        policy: Policy,
        memory: Long = Runtime.getRuntime().maxMemory(),
    ) {
        val plan = assignment.localPlan
        need(assignment.seed.size() == KeyedHash.DIGEST_BYTES) { "a seed of ${assignment.seed.size()} bytes" }
        checkPlan(plan, manifest, assignment.answer, assignment.setsList)
        val needed = Plans.memory(plan, manifest)
        need(needed <= memory) { "a local plan that takes $needed bytes of memory; this device gives up to $memory" }
        for (name in Plans.consents(plan, manifest).sorted()) {
            permit(name in policy.allowTables) { "'$name' does not leave this device" }
        }
        permit(plan.statisticsList.none { it.hasLabelDistribution() } || exactTables(plan, manifest).isEmpty()) {
            BESIDE_NOISE
        }
    }

    /**
     * Refuse to learn from so few [photos], or in so few batches, that the result would show single photos.
     *
     * @param photos Number of train photos that the plan may train on and count.
     * @param validation Number of train photos that it may measure on instead.
     * @throws AssignmentException With reason `POLICY`.
     */
    fun checkAmounts(
        plan: LocalPlan,
        manifest: Manifest,
        photos: Int,
        validation: Int,
        policy: Policy,
    ) {
        val counts = plan.statisticsList.any { it.hasClassCounts() || it.hasLabelDistribution() }
        val measures = Plans.readsRows(plan, Rows.ROWS_VALIDATION)
        val reads = counts || measures || Plans.readsRows(plan, Rows.ROWS_TRAIN)
        permit(!reads || photos >= policy.leastTrainPhotos) {
            "$photos photos to train on; it takes ${policy.leastTrainPhotos} or more"
        }
        permit(!measures || validation >= policy.leastTrainPhotos) {
            "$validation photos to measure on; it takes ${policy.leastTrainPhotos} or more"
        }
        for (each in plan.instructionsList.filter { it.hasTrain() && it.train.rows == Rows.ROWS_TRAIN }) {
            val steps = Batches.steps(each.train, photos, Manifests.program(manifest, each.train.program).batch)
            permit(steps >= policy.leastBatches) {
                "training '${each.value}' takes $steps batches; it takes ${policy.leastBatches} or more"
            }
        }
    }

    /**
     * The local plan that puts a current model together, as its only instruction.
     *
     * @throws AssignmentException The model cannot be put together in this bundle.
     */
    fun assembling(
        model: CurrentModel,
        manifest: Manifest,
    ): LocalPlan {
        val assemble = Assemble.newBuilder().addAllRules(model.rulesList)
        val plan =
            LocalPlan
                .newBuilder()
                .setFormat(Plans.FORMAT)
                .addInstructions(Instruction.newBuilder().setValue(MODEL).setAssemble(assemble))
                .addAllExtractors(model.extractorsList)
                .addEvaluations(Evaluation.newBuilder().setLabel(MODEL).setValue(MODEL))
                .build()
        checkPlan(plan, manifest, Answer.ANSWER_EVALUATION, model.setsList)
        return plan
    }

    private fun checkPlan(
        plan: LocalPlan,
        manifest: Manifest,
        answer: Answer,
        sets: List<BlobSet>,
    ) {
        try {
            PlanCheck(plan, manifest, answer, sets.mapTo(HashSet()) { it.name }).run()
        } catch (refused: PlanRefused) {
            val reason = if (refused.code == PlanRefused.RANGE) Reason.POLICY else Reason.UNSUPPORTED
            throw AssignmentException(reason, refused.message.orEmpty(), refused)
        }
    }

    /** The uploaded tables that are measured on the client's own photos. */
    private fun exactTables(
        plan: LocalPlan,
        manifest: Manifest,
    ): List<String> {
        val tables = Plans.tables(plan, manifest)
        return plan.uploadsList
            .filter { it.name in tables && Plans.isAboutPhotos(plan, it.value) }
            .map { "table '${tables.getValue(it.name).makes}'" }
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

    private const val MODEL = "model"
    private const val BESIDE_NOISE =
        "nothing measured exactly is answered beside a label distribution, whose noise it would undo"

    /** Statistics with exact values, and their names. */
    private val EXACT =
        mapOf(
            Statistic.KindCase.CLASS_COUNTS to "class counts",
            Statistic.KindCase.CONFUSION to "confusion matrices",
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
