package org.fedlens.sdk.training

import org.fedlens.proto.v1.ClassCounts
import org.fedlens.proto.v1.ClientStatistic
import org.fedlens.proto.v1.Codec
import org.fedlens.proto.v1.Confusion
import org.fedlens.proto.v1.EvaluationPlan
import org.fedlens.proto.v1.LabelDistribution
import org.fedlens.proto.v1.LocalPlan
import org.fedlens.proto.v1.SetSource
import org.fedlens.proto.v1.Stage
import org.fedlens.proto.v1.StartRule
import org.fedlens.proto.v1.TensorSelector
import org.fedlens.proto.v1.Upload
import org.fedlens.sdk.blob.FloatTensor
import org.fedlens.sdk.blob.Tensor
import org.junit.Assert.assertEquals
import org.junit.Assert.assertThrows

val SEED = ByteArray(32) { it.toByte() }
val CLASS_COUNTS: ClientStatistic =
    ClientStatistic
        .newBuilder()
        .setClassCounts(
            ClassCounts.getDefaultInstance(),
        ).build()
val CONFUSION: ClientStatistic = ClientStatistic.newBuilder().setConfusion(Confusion.getDefaultInstance()).build()

fun labelDistribution(epsilon: Double): ClientStatistic =
    ClientStatistic.newBuilder().setLabelDistribution(LabelDistribution.newBuilder().setEpsilon(epsilon)).build()

fun from(
    download: String = "",
    kept: String = "",
    vararg names: String,
): StartRule =
    StartRule
        .newBuilder()
        .setTensors(TensorSelector.newBuilder().addAllNames(names.toList()))
        .setSource(SetSource.newBuilder().setDownload(download).setKept(kept))
        .build()

fun stage(
    epochs: Int = 1,
    program: String = "step",
): Stage.Builder = Stage.newBuilder().setProgram(program).setEpochs(epochs)

/** Trains everything from `global` and sends everything. */
fun wholePlan(
    epochs: Int = 1,
    change: LocalPlan.Builder.() -> Unit = {},
): LocalPlan =
    LocalPlan
        .newBuilder()
        .addStart(from("global"))
        .addStages(stage(epochs))
        .setUpload(Upload.newBuilder().setCodec(Codec.CODEC_FLOAT32))
        .setEvaluation(EvaluationPlan.newBuilder().setAtStart(true).setAtEnd(true))
        .apply(change)
        .build()

fun LocalPlan.Builder.sending(change: Upload.Builder.() -> Unit): LocalPlan.Builder =
    setUpload(upload.toBuilder().apply(change))

fun LocalPlan.Builder.evaluating(change: EvaluationPlan.Builder.() -> Unit): LocalPlan.Builder =
    setEvaluation(evaluation.toBuilder().apply(change))

/** Both tensors of a [SummingBundle] with all elements the same. */
fun filled(
    value: Float,
    width: Int = 3,
): Map<String, Tensor> =
    mapOf(
        "fc.bias" to FloatTensor.of(listOf(2), FloatArray(2) { value }),
        "fc.weight" to FloatTensor.of(listOf(2, width.toLong()), FloatArray(2 * width) { value }),
    )

fun Map<String, Tensor>.floats(name: String): List<Float> = (getValue(name) as FloatTensor).toArray().toList()

inline fun <reified E : Exception> assertFails(
    message: String,
    crossinline work: () -> Unit,
): E {
    val error = assertThrows(E::class.java) { work() }
    assertEquals(message, error.message)
    return error
}
