package org.fedlens.sdk.plan

import org.fedlens.proto.v1.Binding
import org.fedlens.proto.v1.Evaluation
import org.fedlens.proto.v1.Instruction
import org.fedlens.proto.v1.LocalPlan
import org.fedlens.proto.v1.Manifest
import org.fedlens.proto.v1.Program
import org.fedlens.proto.v1.Rows
import org.fedlens.proto.v1.Rule
import org.fedlens.proto.v1.SlotKind
import org.fedlens.proto.v1.Source
import org.fedlens.sdk.Manifests
import org.fedlens.sdk.blob.TensorSpec

/**
 * What an instruction makes.
 *
 * @property makes `weights`, or the name of a table.
 * @property isDerived True if a `derive` made it.
 * @property tensors Its tensors, floats as float32.
 */
internal class Value(
    val makes: String,
    val isDerived: Boolean,
    val tensors: List<TensorSpec>,
) {
    val isTable: Boolean get() = makes != WEIGHTS

    /** Bytes of its tensors. */
    val bytes: Long get() = tensors.sumOf { it.bytes }
}

/**
 * A use of a source.
 *
 * @property tensors What the source must have.
 * @property isOptional True if the plan goes on without it.
 */
internal class Use(
    val source: Source,
    val tensors: List<TensorSpec>,
    val isOptional: Boolean = false,
)

/** Local plans for a bundle: what they read, what their values hold, and what they upload. */
internal object Plans {
    const val FORMAT = 1
    const val PREDICT = "predict"

    /** Before the name of a set of client state, in [consents]. */
    const val STATE = "state/"

    /** What each instruction of a checked plan makes, by the name of the value. */
    fun made(
        plan: LocalPlan,
        manifest: Manifest,
    ): Map<String, Value> = plan.instructionsList.associate { it.value to made(it, manifest) }

    /** What a checked instruction makes. */
    fun made(
        instruction: Instruction,
        manifest: Manifest,
    ): Value {
        if (!instruction.hasDerive()) return Value(WEIGHTS, false, TensorSpec.ofTensors(manifest.tensorsList))
        val program = Manifests.program(manifest, instruction.derive.program)
        val rows = manifest.public.rows.takeIf { program.makesRows }
        return Value(program.makes, true, program.outputsList.map { it.spec(it.name, rows) })
    }

    /** The uses of sources in a checked plan, in its order. */
    fun uses(
        plan: LocalPlan,
        manifest: Manifest,
    ): List<Use> =
        plan.instructionsList.flatMap { uses(it, manifest) } +
            plan.evaluationsList.flatMap { bound(it.predicting(manifest), it.bindingsList, manifest) }

    /** The uses of sources in one instruction, without the weights that a training starts from. */
    fun uses(
        instruction: Instruction,
        manifest: Manifest,
    ): List<Use> =
        when (instruction.kindCase) {
            Instruction.KindCase.ASSEMBLE ->
                selected(instruction.assemble.rulesList, manifest).map { (rule, tensors) -> Use(rule.source, tensors) }
            Instruction.KindCase.TRAIN ->
                bound(
                    Manifests.program(manifest, instruction.train.program),
                    instruction.train.bindingsList,
                    manifest,
                )
            else ->
                bound(
                    Manifests.program(manifest, instruction.derive.program),
                    instruction.derive.bindingsList,
                    manifest,
                )
        }

    /** The uses of sources in these bindings of a program. */
    fun bound(
        program: Program,
        bindings: List<Binding>,
        manifest: Manifest,
    ): List<Use> {
        val wanted = program.references
        return bindings.map { binding ->
            val tensors =
                wanted.getValue(binding.reference).map { slot ->
                    val isTarget = slot.kind == SlotKind.SLOT_KIND_TARGET
                    slot.spec(slot.tensor, manifest.public.rows.takeIf { isTarget })
                }
            Use(binding.source, tensors, binding.reference in program.optionalList)
        }
    }

    /** Each rule with the tensors that no earlier rule selects. */
    fun selected(
        rules: List<Rule>,
        manifest: Manifest,
    ): List<Pair<Rule, List<TensorSpec>>> {
        val taken = HashSet<String>()
        return rules.map { rule ->
            val found = Manifests.select(manifest.tensorsList, rule.tensors).filter { taken.add(it.name) }
            rule to TensorSpec.ofTensors(found)
        }
    }

    /** Names of the values that something after instruction [index] reads; -1: anything. */
    fun stillRead(
        plan: LocalPlan,
        index: Int,
    ): Set<String> {
        val found = HashSet<String>()
        for (instruction in plan.instructionsList.drop(index + 1)) {
            instruction.assemble.rulesList.mapTo(found) { it.source.value }
            found += instruction.train.start
            (instruction.train.bindingsList + instruction.derive.bindingsList).mapTo(found) { it.source.value }
        }
        for (evaluation in plan.evaluationsList) {
            found += evaluation.value
            evaluation.bindingsList.mapTo(found) { it.source.value }
        }
        plan.keepsList.mapTo(found) { it.value }
        plan.uploadsList.mapTo(found) { it.value }
        return found - ""
    }

    /** Names of the programs that a plan runs, as far as it names them. */
    fun programs(plan: LocalPlan): Set<String> =
        plan.instructionsList.flatMap { listOf(it.train.program, it.derive.program) }.toSet() +
            plan.evaluationsList.map { it.program } - ""

    /** True if an instruction runs over these rows. */
    fun readsRows(
        plan: LocalPlan,
        rows: Rows,
    ): Boolean = plan.instructionsList.any { it.train.rows == rows || it.derive.rows == rows }

    /** Names of the sets that a client without state cannot do without. */
    fun downloads(
        plan: LocalPlan,
        manifest: Manifest,
    ): Set<String> {
        val needed = uses(plan, manifest).filter { !it.isOptional && it.tensors.isNotEmpty() }
        return needed.map { it.source.download }.toSet() + plan.uploadsList.map { it.base } - ""
    }

    /** The rules by which the first weights are assembled; empty if there are none. */
    fun startRules(plan: LocalPlan): List<Rule> =
        plan.instructionsList
            .firstOrNull { it.hasAssemble() }
            ?.assemble
            ?.rulesList
            .orEmpty()

    /** The tables that a plan uploads, by name of the upload. */
    fun tables(
        plan: LocalPlan,
        manifest: Manifest,
    ): Map<String, Value> {
        val made = made(plan, manifest)
        return plan.uploadsList.associate { it.name to made.getValue(it.value) }.filterValues { it.isTable }
    }

    /**
     * Names of what a plan uploads that a client's owner has to allow by name: tables, by what they are, and sets of the
     * client's state, as `state/NAME`, from which uploaded weights are assembled or trained, or towards which a
     * training may pull them: with enough weight on a reference, what it makes is the reference.
     */
    fun consents(
        plan: LocalPlan,
        manifest: Manifest,
    ): Set<String> {
        val made = made(plan, manifest)
        val asked = tables(plan, manifest).values.mapTo(HashSet()) { it.makes }
        for (upload in plan.uploadsList.filterNot { made.getValue(it.value).isTable }) {
            val sent = Manifests.select(manifest.tensorsList, upload.tensors).mapTo(HashSet()) { it.name }
            states(plan, manifest, upload.value, sent).mapTo(asked) { "$STATE$it" }
        }
        return asked
    }

    /** The sets of client state from which these [tensors] of the weights [value] come. */
    private fun states(
        plan: LocalPlan,
        manifest: Manifest,
        value: String,
        tensors: Set<String>,
    ): Set<String> {
        val instruction = plan.instructionsList.first { it.value == value }
        val sources =
            when {
                instruction.hasTrain() -> {
                    val start = Source.newBuilder().setValue(instruction.train.start).build()
                    (listOf(start) + instruction.train.bindingsList.map { it.source }).map { it to tensors }
                }
                instruction.hasDerive() -> instruction.derive.bindingsList.map { it.source to tensors }
                else ->
                    selected(instruction.assemble.rulesList, manifest).map { (rule, specs) ->
                        rule.source to specs.map { it.name }.filterTo(HashSet()) { it in tensors }
                    }
            }
        return sources.filter { (_, among) -> among.isNotEmpty() }.flatMapTo(HashSet()) { (source, among) ->
            val before = if (source.hasValue()) states(plan, manifest, source.value, among) else emptySet()
            before + listOf(source.state).filter { it.isNotEmpty() }
        }
    }

    /** True if a value comes from a `derive` over the client's photos or labels, or over what it has kept of them. */
    fun isAboutPhotos(
        plan: LocalPlan,
        value: String,
    ): Boolean {
        val instruction = plan.instructionsList.first { it.value == value }
        if (!instruction.hasDerive()) return false
        if (instruction.derive.rows == Rows.ROWS_TRAIN || instruction.derive.rows == Rows.ROWS_VALIDATION) return true
        return instruction.derive.bindingsList.any {
            val source = it.source
            source.state.isNotEmpty() || source.labelCounts || (source.hasValue() && isAboutPhotos(plan, source.value))
        }
    }

    /** Bytes of the values that are still read and of the slots of the running program, at most at any time. */
    fun memory(
        plan: LocalPlan,
        manifest: Manifest,
    ): Long {
        val made = made(plan, manifest)
        var live = emptySet<String>()
        val running =
            plan.instructionsList.mapIndexed { index, instruction ->
                live = live + instruction.value
                val peak = live.sumOf { made.getValue(it).bytes } + slotBytes(instruction, manifest)
                live = live intersect stillRead(plan, index)
                peak
            }
        val evaluating = plan.evaluationsList.map { slotBytes(it.predicting(manifest)) }
        val atEnd = live.sumOf { made.getValue(it).bytes } + (evaluating.maxOrNull() ?: 0)
        return maxOf(running.maxOrNull() ?: 0, atEnd)
    }

    /** The program of an evaluation. */
    fun Evaluation.predicting(manifest: Manifest): Program = Manifests.program(manifest, program.ifEmpty { PREDICT })

    private fun slotBytes(
        instruction: Instruction,
        manifest: Manifest,
    ): Long {
        if (instruction.hasAssemble()) return 0
        val name = if (instruction.hasTrain()) instruction.train.program else instruction.derive.program
        return slotBytes(Manifests.program(manifest, name))
    }

    private fun slotBytes(program: Program): Long =
        (program.inputsList + program.outputsList)
            .filter { it.kind != SlotKind.SLOT_KIND_FROZEN }
            .sumOf { it.spec(it.name).bytes }
}
