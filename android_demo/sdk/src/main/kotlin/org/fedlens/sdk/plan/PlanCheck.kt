package org.fedlens.sdk.plan

import org.fedlens.proto.v1.Answer
import org.fedlens.proto.v1.Binding
import org.fedlens.proto.v1.Codec
import org.fedlens.proto.v1.Derive
import org.fedlens.proto.v1.Dtype
import org.fedlens.proto.v1.HyperValue
import org.fedlens.proto.v1.Instruction
import org.fedlens.proto.v1.LocalPlan
import org.fedlens.proto.v1.Manifest
import org.fedlens.proto.v1.Program
import org.fedlens.proto.v1.Rows
import org.fedlens.proto.v1.SlotKind
import org.fedlens.proto.v1.Source
import org.fedlens.proto.v1.Statistic
import org.fedlens.proto.v1.TensorSelector
import org.fedlens.proto.v1.Train
import org.fedlens.sdk.Manifests
import org.fedlens.sdk.blob.BlobWriter
import org.fedlens.sdk.blob.TensorSpec
import org.fedlens.sdk.store.NoisyAnswers

/**
 * A local plan that does not fit the bundle, or that this version cannot carry out.
 *
 * @property code The kind of fault, equal in every language.
 */
internal class PlanRefused(
    val code: String,
    message: String,
) : Exception(message) {
    companion object {
        /** The code of a hyper-parameter outside the range that the signed manifest gives it. */
        const val RANGE = "range"
    }
}

/**
 * The check of a local plan against a bundle: whether a client can carry it out.
 *
 * @param answer Of the assignment.
 * @param sets Names of the assignment's sets; null: not known.
 */
internal class PlanCheck(
    private val plan: LocalPlan,
    private val manifest: Manifest,
    private val answer: Answer,
    private val sets: Set<String>?,
) {
    private val known = LinkedHashMap<String, Value>()

    /** @throws PlanRefused The client cannot carry out the plan; names the first fault. */
    fun run() {
        need(plan.format == Plans.FORMAT, "format") {
            "local plan of format ${Integer.toUnsignedString(plan.format)}; this version runs ${Plans.FORMAT}"
        }
        checkSizesAndNames()
        val percent = plan.validationPercent
        need(percent in 0..MAX_VALIDATION_PERCENT, "rows") {
            "${Integer.toUnsignedString(percent)} % for validation; 1 to $MAX_VALIDATION_PERCENT are allowed"
        }
        for (instruction in plan.instructionsList) {
            check(instruction)
            known[instruction.value] = Plans.made(instruction, manifest)
        }
        val weights = TensorSpec.ofTensors(manifest.tensorsList).sumOf { it.bytes }
        for ((name, value) in known) {
            need(value.bytes <= maxOf(MAX_TABLE_BYTES, weights), "size") { "value '$name' of ${value.bytes} bytes" }
        }
        checkKeeps()
        checkEvaluations()
        checkUploads() // reads the programs of all evaluations, too
        checkStatistics()
        val unused = known.keys - Plans.stillRead(plan, -1)
        need(unused.isEmpty(), "unused") { "value '${unused.first()}', which nothing reads" }
        checkAnswer()
        need(plan.extractorsCount == manifest.concatenated, "extractors") {
            "${plan.extractorsCount} extractors; the bundle takes ${manifest.concatenated} side by side"
        }
        if (sets == null) return
        val missing = Plans.downloads(plan, manifest) - sets - Manifests.INITIAL
        need(missing.isEmpty(), "missing-set") { "set '${missing.min()}', which is not among the assignment's" }
    }

    private fun checkSizesAndNames() {
        checkCount("instructions", plan.instructionsCount, MAX_INSTRUCTIONS)
        checkCount("keeps", plan.keepsCount, MAX_RESULTS)
        checkCount("uploads", plan.uploadsCount, MAX_RESULTS)
        checkCount("evaluations", plan.evaluationsCount, MAX_RESULTS)
        val named =
            mapOf(
                "value" to plan.instructionsList.map { it.value },
                "kept set" to plan.keepsList.map { it.state },
                "upload" to plan.uploadsList.map { it.name },
                "evaluation" to plan.evaluationsList.map { it.label },
            )
        for ((what, names) in named) names.forEach { checkName(what, it) }
        for (name in plan.extractorsList + plan.uploadsList.map { it.base }.filter { it.isNotEmpty() }) {
            checkName("set", name)
        }
        for ((what, names) in named) checkOnce(what, names)
    }

    private fun check(instruction: Instruction) {
        when (instruction.kindCase) {
            Instruction.KindCase.ASSEMBLE -> checkAssemble(instruction)
            Instruction.KindCase.TRAIN -> checkTrain(instruction.train, instruction.value)
            Instruction.KindCase.DERIVE -> checkDerive(instruction.derive)
            else -> need(false, "program") { "instruction '${instruction.value}' of an unknown kind" }
        }
    }

    private fun checkAssemble(instruction: Instruction) {
        for (rule in instruction.assemble.rulesList) {
            checkSource(rule.source, "a rule")
            need(rule.source.otherCase != Source.OtherCase.LABEL_COUNTS, "source") { "weights from label counts" }
        }
        val selected = Plans.selected(instruction.assemble.rulesList, manifest)
        for ((rule, tensors) in selected) {
            val isTable = known[rule.source.value]?.isTable == true
            need(!isTable || tensors.isEmpty(), "schema") { "weights from table '${rule.source.value}'" }
        }
        val covered = selected.flatMap { it.second }.map { it.name }
        val left = manifest.tensorsList.map { it.name } - covered.toSet()
        need(left.isEmpty(), "uncovered") { "no rule selects tensor '${left.first()}'" }
    }

    private fun checkTrain(
        train: Train,
        name: String,
    ) {
        val program = program(train.program, ProgramKind.TRAIN)
        need(!value(train.start, "the start of '$name'").isTable, "schema") { "a training that starts from a table" }
        need(train.epochs != 0 || train.steps != 0, "length") { "training '$name' has no length" }
        checkRows(program, train.rows, setOf(Rows.ROWS_TRAIN, Rows.ROWS_PUBLIC))
        checkHyper(program, train.hyperValuesList)
        checkBindings(program, train.bindingsList)
    }

    private fun checkDerive(derive: Derive) {
        val program = program(derive.program, ProgramKind.DERIVE)
        val allowed =
            when {
                program.makesRows -> setOf(Rows.ROWS_PUBLIC)
                program.batch > 0 -> setOf(Rows.ROWS_TRAIN, Rows.ROWS_VALIDATION, Rows.ROWS_PUBLIC)
                else -> setOf(Rows.ROWS_UNSPECIFIED)
            }
        checkRows(program, derive.rows, allowed)
        checkHyper(program, derive.hyperValuesList)
        checkBindings(program, derive.bindingsList)
    }

    private fun checkRows(
        program: Program,
        rows: Rows,
        allowed: Set<Rows>,
    ) {
        val named = "program '${program.name}' over $rows"
        need(rows in allowed, "rows") { "$named; allowed are $allowed" }
        if (rows == Rows.ROWS_PUBLIC) {
            need(manifest.hasPublic(), "rows") { "$named: the bundle has no public rows" }
            need(!program.takesViews(manifest), "rows") { "$named: it takes views, public rows have none" }
        } else {
            need(program.inputsList.none { it.kind == SlotKind.SLOT_KIND_TARGET }, "rows") {
                "$named: it has targets, which only public rows have"
            }
        }
        need(rows != Rows.ROWS_VALIDATION || plan.validationPercent > 0, "rows") {
            "$named: the plan sets no photos apart for it"
        }
    }

    private fun checkHyper(
        program: Program,
        values: List<HyperValue>,
    ) {
        checkOnce("hyper-parameter", values.map { it.name })
        val slots = program.inputsList.filter { it.kind == SlotKind.SLOT_KIND_HYPER }.map { it.name }
        for (given in values) {
            need(given.name in slots, "hyper") {
                "program '${program.name}' has no hyper-parameter '${given.name}'; it has $slots"
            }
            val range = manifest.hyperParametersList.first { it.name == given.name }
            need(given.value in range.minimum..range.maximum, PlanRefused.RANGE) {
                "${given.name} is ${given.value}, allowed are ${range.minimum} to ${range.maximum}"
            }
        }
    }

    private fun checkBindings(
        program: Program,
        bindings: List<Binding>,
    ) {
        val wanted = program.references
        checkOnce("binding", bindings.map { it.reference })
        for (binding in bindings) {
            val what = "reference '${binding.reference}'"
            need(binding.reference in wanted, "reference") {
                "program '${program.name}' has no $what; it has ${wanted.keys}"
            }
            checkSource(binding.source, what)
            val isCounts = binding.source.otherCase == Source.OtherCase.LABEL_COUNTS
            need(!isCounts || program.kind == ProgramKind.TRAIN, "source") {
                "$what: label counts go to programs that train"
            }
        }
        val unbound = wanted.keys - program.optionalList.toSet() - bindings.map { it.reference }.toSet()
        need(unbound.isEmpty(), "unbound") { "program '${program.name}' needs reference '${unbound.first()}'" }
        for (use in Plans.bound(program, bindings, manifest)) {
            val schema = schema(use.source) ?: continue
            for (spec in use.tensors) {
                need(spec in schema, "schema") {
                    "program '${program.name}' needs $spec; the source has ${schema.find { it.name == spec.name }}"
                }
            }
        }
    }

    private fun checkSource(
        source: Source,
        where: String,
    ) {
        val other = source.otherCase
        need(source.state.isNotEmpty() || other != Source.OtherCase.OTHER_NOT_SET, "source") { "$where has no source" }
        if (source.state.isNotEmpty()) checkName("client state", source.state)
        if (source.hasDownload()) checkName("set", source.download)
        need(other != Source.OtherCase.LABEL_COUNTS || source.labelCounts, "source") {
            "$where: label_counts must be true"
        }
        if (source.hasValue()) value(source.value, where)
    }

    private fun checkKeeps() {
        for (keep in plan.keepsList) {
            val what = "kept set '${keep.state}'"
            checkSelector(value(keep.value, what), keep.hasTensors(), keep.tensors, what)
        }
    }

    private fun checkUploads() {
        var total = 0L
        for (upload in plan.uploadsList) {
            val what = "upload '${upload.name}'"
            val value = value(upload.value, what)
            checkSelector(value, upload.hasTensors(), upload.tensors, what)
            need(value.isTable || !value.isDerived, "upload") {
                "$what of weights that were derived; only tables may be"
            }
            val isAllowed =
                if (value.isTable) upload.codec == Codec.CODEC_FLOAT32 else BlobWriter.floatsOf(upload.codec) != null
            need(isAllowed, "codec") { "$what has codec ${upload.codecValue}" }
            if (value.isTable) {
                total += value.bytes
                need(upload.base.isEmpty(), "base") { "$what: differences are for weights, not for tables" }
            } else if (upload.base.isNotEmpty()) {
                val uses = Plans.uses(plan, manifest)
                val needed = uses.filter { !it.isOptional && it.tensors.isNotEmpty() }.map { it.source.download }
                val optional = uses.map { it.source.download }.toSet() - needed.toSet()
                need(upload.base !in optional, "base") { "$what: set '${upload.base}' may be missing" }
            }
        }
        need(total <= MAX_TABLE_BYTES, "size") {
            "tables of $total bytes are uploaded; allowed are $MAX_TABLE_BYTES"
        }
    }

    private fun checkSelector(
        value: Value,
        isSet: Boolean,
        selector: TensorSelector,
        what: String,
    ) {
        if (value.isTable) {
            need(!isSet, "selector") { "$what selects tensors of a table, which is taken whole" }
        } else {
            need(Manifests.select(manifest.tensorsList, selector).isNotEmpty(), "selector") {
                "$what selects no tensor"
            }
        }
    }

    private fun checkEvaluations() {
        for (evaluation in plan.evaluationsList) {
            val what = "evaluation '${evaluation.label}'"
            need(!value(evaluation.value, what).isTable, "evaluation") { "$what of a table; weights are evaluated" }
            val program = program(evaluation.program.ifEmpty { Plans.PREDICT }, ProgramKind.PREDICT)
            checkBindings(program, evaluation.bindingsList)
        }
    }

    private fun checkStatistics() {
        val kinds = plan.statisticsList.map { it.kindCase }
        need(Statistic.KindCase.KIND_NOT_SET !in kinds, "statistic") { "a statistic of no kind" }
        checkOnce("statistic", kinds.map { it.name.lowercase() })
        for (statistic in plan.statisticsList.filter { it.hasLabelDistribution() }) {
            val epsilon = statistic.labelDistribution.epsilon
            need(NoisyAnswers.isUsable(epsilon), "statistic") {
                "a label distribution with epsilon $epsilon; it must be above 0 and finite"
            }
        }
    }

    private fun checkAnswer() {
        need(answer == Answer.ANSWER_UPDATE || answer == Answer.ANSWER_EVALUATION, "answer") {
            "an answer of kind $answer"
        }
        if (answer == Answer.ANSWER_UPDATE) return
        val asks = plan.statisticsList.any { !it.hasConfusion() }
        need(plan.keepsCount == 0 && plan.uploadsCount == 0 && !asks, "answer") {
            "an evaluation that keeps, uploads or counts something"
        }
    }

    /** The tensors that a source is known to have; null: downloads and client state have no schema. */
    private fun schema(source: Source): List<TensorSpec>? =
        when {
            source.hasValue() -> known.getValue(source.value).tensors
            source.hasLabelCounts() -> listOf(labelCounts(manifest))
            source.download == Manifests.INITIAL -> TensorSpec.ofTensors(manifest.tensorsList)
            else -> null
        }

    private fun program(
        name: String,
        kind: ProgramKind,
    ): Program {
        val found = manifest.programsList.firstOrNull { it.name == name }
        need(found != null, "program") {
            "the bundle has no program '$name'; it has ${manifest.programsList.joinToString { it.name }}"
        }
        need(found.kind == kind, "program") { "program '$name' cannot ${kind.name.lowercase()}" }
        return found
    }

    private fun value(
        name: String,
        where: String,
    ): Value {
        val found = known[name]
        need(found != null, "value") { "$where: value '$name' is not made before; there are ${known.keys}" }
        return found
    }

    companion object {
        /** Largest table in bytes, unless the weights are larger; also the most bytes of uploaded tables. */
        private const val MAX_TABLE_BYTES = 64L shl 20
        private const val MAX_INSTRUCTIONS = 32

        /** Most keeps, uploads or evaluations of a plan. */
        private const val MAX_RESULTS = 8
        private const val MAX_VALIDATION_PERCENT = 50
        private const val MAX_SHOWN = 80
        private val NAME = Regex("[a-z0-9_.-]{1,64}")

        /** The only tensor of a reference that is bound to label counts. */
        fun labelCounts(manifest: Manifest): TensorSpec =
            TensorSpec(
                LABEL_COUNTS,
                Dtype.DTYPE_FLOAT32,
                listOf(manifest.classNamesCount.toLong()),
            )

        private fun checkCount(
            what: String,
            found: Int,
            most: Int,
        ) = need(found <= most, "size") { "$found $what; at most $most are allowed" }

        private fun checkName(
            what: String,
            name: String,
        ) = need(NAME.matches(name), "name") {
            "$what '${name.take(MAX_SHOWN)}': a name has 1 to 64 of a to z, 0 to 9, '_', '-' and '.'"
        }

        private fun checkOnce(
            what: String,
            names: List<String>,
        ) {
            val repeated = names.groupingBy { it }.eachCount().filterValues { it > 1 }.keys
            need(repeated.isEmpty(), "duplicate") { "$what '${repeated.first()}' occurs twice" }
        }

        @OptIn(kotlin.contracts.ExperimentalContracts::class)
        private inline fun need(
            condition: Boolean,
            code: String,
            what: () -> String,
        ) {
            kotlin.contracts.contract { returns() implies condition }
            if (!condition) throw PlanRefused(code, "not supported: ${what()}")
        }
    }
}
