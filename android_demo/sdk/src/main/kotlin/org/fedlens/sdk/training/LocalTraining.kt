package org.fedlens.sdk.training

import org.fedlens.proto.v1.Assignment
import org.fedlens.proto.v1.ClientStatistic
import org.fedlens.proto.v1.EvaluationMoment
import org.fedlens.proto.v1.Stage
import org.fedlens.proto.v1.TensorSelector
import org.fedlens.sdk.AssignmentException
import org.fedlens.sdk.Batches
import org.fedlens.sdk.Evaluation
import org.fedlens.sdk.Manifests
import org.fedlens.sdk.engine.Engine

/**
 * The result of local training.
 *
 * @property numExamples Number of photos trained on or counted.
 * @property classCounts Number of train photos of each class, in label order, even if not requested.
 * @property evaluations Requested evaluations, by moment.
 * @property newState Client state to store, by name.
 * @property upload Tensors to send; null if none were requested.
 */
internal class TrainingResult(
    val numExamples: Int,
    val classCounts: LongArray,
    val evaluations: Map<EvaluationMoment, Evaluation>,
    val newState: Map<String, Tensors>,
    val upload: Tensors?,
)

/**
 * The execution of a local plan that [Requirements.check] has accepted: a function of the assignment, the photos, and
 * the named sets. The plan is data; this code knows no method.
 *
 * @param assignment Source of the seed and the local plan.
 * @param engine Engine for the assignment's bundle.
 * @param downloads The assignment's sets by name.
 * @param clientState Client state by name; null if there is none yet.
 * @param onStep Called after every step with its number from 1, the number of all steps, and its loss. An exception
 *     from it ends the training.
 */
internal class LocalTraining(
    private val assignment: Assignment,
    private val engine: Engine,
    private val photos: PreparedPhotos,
    private val downloads: Map<String, Tensors>,
    private val clientState: (String) -> Tensors?,
    private val onStep: (step: Long, steps: Long, loss: Float) -> Unit = { _, _, _ -> },
) {
    private val plan = assignment.localPlan
    private val manifest = engine.bundle.manifest
    private val statistics = plan.statisticsList.map { it.kindCase }
    private val steps =
        (plan.stagesList + plan.evaluation.fineTuningList).sumOf {
            Batches.steps(it, photos.train.size, manifest.batch)
        }
    private var step = 0L

    /**
     * Execute the plan; call it once.
     *
     * @throws AssignmentException There are no photos to train on, or a set does not fit.
     * @throws org.fedlens.sdk.EngineException A program could not be run, or gave a NaN.
     */
    fun execute(): TrainingResult {
        val countsTrainPhotos = statistics.any { it in ABOUT_TRAIN_PHOTOS }
        val trains = plan.stagesCount + plan.evaluation.fineTuningCount > 0
        if ((trains || countsTrainPhotos) && photos.train.size == 0) {
            throw AssignmentException(AssignmentException.Reason.NO_PHOTOS, "there is no labelled train photo")
        }
        val sources = Sources(manifest, downloads, clientState)
        val start = sources.start(plan.startList)
        val counts = classCounts()
        val references = plan.referencesList.associate { it.name to sources.reference(it, start, counts) }
        val evaluations = LinkedHashMap<EvaluationMoment, Evaluation>()
        if (plan.evaluation.atStart) evaluations[EvaluationMoment.EVALUATION_MOMENT_START] = evaluate(start)
        if (plan.evaluation.fineTuningCount > 0) {
            // Numbered after the other stages, so that they see the photos in another order.
            val fineTuned = train(start, plan.evaluation.fineTuningList, plan.stagesCount, references)
            evaluations[EvaluationMoment.EVALUATION_MOMENT_FINE_TUNED] = evaluate(fineTuned)
        }
        val trained = train(start, plan.stagesList, 0, references)
        if (plan.evaluation.atEnd) evaluations[EvaluationMoment.EVALUATION_MOMENT_END] = evaluate(trained)
        return TrainingResult(
            numExamples = if (plan.stagesCount > 0 || countsTrainPhotos) photos.train.size else 0,
            classCounts = counts,
            evaluations = evaluations,
            newState = plan.keepList.associate { it.set to selected(trained, it.tensors) },
            upload = if (plan.hasUpload()) selected(trained, plan.upload.tensors) else null,
        )
    }

    /** The weights after these stages, the first of which has index [first]. */
    private fun train(
        weights: Tensors,
        stages: List<Stage>,
        first: Int,
        references: Map<String, Tensors>,
    ): Tensors =
        stages.foldIndexed(weights) { i, before, stage ->
            engine.train(
                stage.program,
                before,
                photos.train.rows,
                Batches.of(
                    photos.train.entries,
                    assignment.seed.toByteArray(),
                    first + i,
                    stage,
                    manifest.batch,
                    manifest.lastBatch,
                ),
                stage.hyperValuesList.associate { it.name to it.value },
                references,
            ) { loss -> onStep(++step, steps, loss) }
        }

    private fun evaluate(weights: Tensors): Evaluation {
        val rows = photos.test.rows
        val logits = if (photos.test.size == 0) FloatArray(0) else engine.predict(weights, rows.inputs)
        return Evaluation.of(
            logits,
            rows.labels,
            manifest.classNamesCount,
            ClientStatistic.KindCase.CONFUSION in statistics,
        )
    }

    private fun classCounts(): LongArray {
        val counts = LongArray(manifest.classNamesCount)
        for (label in photos.train.rows.labels) counts[label.toInt()]++
        return counts
    }

    private fun selected(
        tensors: Tensors,
        selector: TensorSelector,
    ): Tensors = Manifests.select(manifest.tensorsList, selector).associate { it.name to tensors.getValue(it.name) }

    private companion object {
        val ABOUT_TRAIN_PHOTOS =
            setOf(ClientStatistic.KindCase.CLASS_COUNTS, ClientStatistic.KindCase.LABEL_DISTRIBUTION)
    }
}
