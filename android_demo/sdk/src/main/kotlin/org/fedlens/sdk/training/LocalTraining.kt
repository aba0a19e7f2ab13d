package org.fedlens.sdk.training

import org.fedlens.proto.v1.Assignment
import org.fedlens.proto.v1.Binding
import org.fedlens.proto.v1.HyperValue
import org.fedlens.proto.v1.Instruction
import org.fedlens.proto.v1.Manifest
import org.fedlens.proto.v1.Program
import org.fedlens.proto.v1.Statistic
import org.fedlens.proto.v1.TensorSelector
import org.fedlens.proto.v1.Train
import org.fedlens.sdk.AssignmentException
import org.fedlens.sdk.Batches
import org.fedlens.sdk.Evaluation
import org.fedlens.sdk.KeyedHash
import org.fedlens.sdk.Manifests
import org.fedlens.sdk.engine.Engine
import org.fedlens.sdk.engine.Rows
import org.fedlens.sdk.plan.Plans
import org.fedlens.sdk.plan.Plans.predicting
import org.fedlens.sdk.plan.batch
import org.fedlens.sdk.plan.takesViews
import org.fedlens.proto.v1.Rows as RowsOf

/**
 * The result of local training.
 *
 * @property numExamples Number of train photos that the result depends on.
 * @property classCounts Number of train photos of each class, in label order, even if not requested.
 * @property evaluations By label, in the plan's order.
 * @property keeps New client state, by name.
 * @property uploads Tensors to send, by name, in the plan's order.
 */
internal class TrainingResult(
    val numExamples: Int,
    val classCounts: LongArray,
    val evaluations: Map<String, Evaluation>,
    val keeps: Map<String, Tensors>,
    val uploads: Map<String, Tensors>,
)

/**
 * The execution of a local plan that [Requirements.check] has accepted: a function of the assignment, the photos, and
 * the named sets. The plan is a short program as data; this code knows no method.
 *
 * @param assignment Source of the seed and the local plan.
 * @param engine Engine for the assignment's bundle.
 * @param downloads The assignment's sets by name.
 * @param clientState Client state by name; null if there is none yet.
 * @param permit Called with the numbers of photos to train on and for validation, before anything is run and again
 *     before there is a result; it may throw.
 * @param onStep Called after every step with its number from 1, the number of all steps, and its loss. An exception
 *     from it ends the training.
 */
internal class LocalTraining(
    private val assignment: Assignment,
    private val engine: Engine,
    private val photos: PreparedPhotos,
    downloads: Map<String, Tensors>,
    clientState: (String) -> Tensors?,
    private val permit: (photos: Int, validation: Int) -> Unit = { _, _ -> },
    private val onStep: (step: Long, steps: Long, loss: Float) -> Unit = { _, _, _ -> },
) {
    private val plan = assignment.localPlan
    private val manifest = engine.bundle.manifest
    private val asked = plan.statisticsList.mapTo(HashSet()) { it.kindCase }
    private val rows = HashMap<RowsOf, PhotoSet>()
    private val values = HashMap<String, Tensors>()
    private val counts: LongArray
    private val sources: Sources
    private var trainings = 0
    private var step = 0L

    init {
        val (train, validation) = photos.train.withoutValidation(plan.validationPercent)
        rows[RowsOf.ROWS_TRAIN] = train
        rows[RowsOf.ROWS_VALIDATION] = validation
        if (reads(RowsOf.ROWS_PUBLIC)) rows[RowsOf.ROWS_PUBLIC] = PhotoSet.public(engine.bundle)
        counts = LongArray(manifest.classNamesCount)
        for (label in train.rows.labels) counts[label.toInt()]++
        sources = Sources(downloads, clientState, values, counts)
    }

    /**
     * Execute the plan; call it once.
     *
     * @throws AssignmentException There are no photos to train on, or a set does not fit.
     * @throws org.fedlens.sdk.EngineException A program could not be run, or gave a NaN.
     */
    fun execute(): TrainingResult {
        val train = rows.getValue(RowsOf.ROWS_TRAIN)
        val countsLabels = asked.any { it in ABOUT_TRAIN_PHOTOS }
        val needsPhotos = countsLabels || reads(RowsOf.ROWS_TRAIN) || reads(RowsOf.ROWS_VALIDATION)
        if (needsPhotos && train.size == 0) {
            throw AssignmentException(AssignmentException.Reason.NO_PHOTOS, "there is no labelled train photo")
        }
        val validation = rows.getValue(RowsOf.ROWS_VALIDATION)
        permit(train.size, validation.size)
        for ((index, instruction) in plan.instructionsList.withIndex()) {
            values[instruction.value] = make(instruction)
            values.keys.retainAll(Plans.stillRead(plan, index))
        }
        val trainsOnPhotos = plan.instructionsList.any { it.train.rows == RowsOf.ROWS_TRAIN }
        return TrainingResult(
            numExamples = if (trainsOnPhotos || countsLabels) train.size else 0,
            classCounts = counts,
            evaluations = plan.evaluationsList.associate { it.label to evaluate(it) },
            keeps = plan.keepsList.associate { it.state to selected(it.value, it.hasTensors(), it.tensors) },
            uploads = plan.uploadsList.associate { it.name to selected(it.value, it.hasTensors(), it.tensors) },
        ).also { permit(train.size, validation.size) }
    }

    private fun make(instruction: Instruction): Tensors =
        when (instruction.kindCase) {
            Instruction.KindCase.ASSEMBLE -> sources.assemble(instruction, manifest)
            Instruction.KindCase.TRAIN -> train(instruction.train)
            else -> {
                val derive = instruction.derive
                val references = references(program(derive.program), derive.bindingsList)
                engine.derive(derive.program, hyper(derive.hyperValuesList), references, rows[derive.rows]?.rows)
            }
        }

    private fun train(train: Train): Tensors {
        val program = program(train.program)
        val photos = rows.getValue(train.rows)
        val number = trainings++
        val seed = assignment.seed.toByteArray()
        return engine.train(
            train.program,
            values.getValue(train.start),
            if (program.takesViews(manifest)) photos.rows else photos.rows.withoutViews(),
            Batches.of(photos.entries, seed, number, train, program.batch, manifest.lastBatch),
            hyper(train.hyperValuesList),
            references(program, train.bindingsList),
            { step, slot, count -> KeyedHash.stepUniforms(seed, number, step, slot, count) },
        ) { loss -> onStep(++step, steps, loss) }
    }

    /** The number of steps of the whole plan. */
    private val steps by lazy {
        plan.instructionsList.filter { it.hasTrain() }.sumOf {
            Batches.steps(it.train, rows.getValue(it.train.rows).size, program(it.train.program).batch)
        }
    }

    private fun evaluate(evaluation: org.fedlens.proto.v1.Evaluation): Evaluation {
        val rows = photos.test.rows
        val program = evaluation.predicting(manifest)
        val references = references(program, evaluation.bindingsList)
        val weights = values.getValue(evaluation.value)
        val logits =
            if (photos.test.size == 0) {
                FloatArray(0)
            } else {
                engine.predict(weights, rows.inputs, program.name, references)
            }
        return Evaluation.of(logits, rows.labels, manifest.classNamesCount, Statistic.KindCase.CONFUSION in asked)
    }

    /** The tensors of each reference that is bound to something. */
    private fun references(
        program: Program,
        bindings: List<Binding>,
    ): Map<String, Tensors> {
        val taken = HashMap<String, Tensors>()
        for ((binding, use) in bindings.zip(Plans.bound(program, bindings, manifest))) {
            sources.take(use)?.let { taken[binding.reference] = it }
        }
        return taken
    }

    private fun selected(
        value: String,
        isSelected: Boolean,
        selector: TensorSelector,
    ): Tensors {
        val tensors = values.getValue(value)
        if (!isSelected) return tensors
        return Manifests.select(manifest.tensorsList, selector).associate { it.name to tensors.getValue(it.name) }
    }

    private fun program(name: String): Program = Manifests.program(manifest, name)

    private fun reads(rows: RowsOf): Boolean = Plans.readsRows(plan, rows)

    private companion object {
        val ABOUT_TRAIN_PHOTOS = setOf(Statistic.KindCase.CLASS_COUNTS, Statistic.KindCase.LABEL_DISTRIBUTION)

        fun hyper(values: List<HyperValue>): Map<String, Double> = values.associate { it.name to it.value }

        fun Rows.withoutViews() = if (views == null) this else Rows(inputs, labels)
    }
}

/** The weights that an `assemble` instruction makes; failures as [Sources.take]. */
internal fun Sources.assemble(
    instruction: Instruction,
    manifest: Manifest,
): Tensors = Plans.uses(instruction, manifest).flatMap { take(it).orEmpty().entries }.associate { it.key to it.value }
