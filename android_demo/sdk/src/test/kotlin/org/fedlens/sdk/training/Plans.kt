package org.fedlens.sdk.training

import org.fedlens.proto.v1.Assemble
import org.fedlens.proto.v1.ClassCounts
import org.fedlens.proto.v1.Codec
import org.fedlens.proto.v1.Confusion
import org.fedlens.proto.v1.Evaluation
import org.fedlens.proto.v1.Instruction
import org.fedlens.proto.v1.LabelDistribution
import org.fedlens.proto.v1.LocalPlan
import org.fedlens.proto.v1.Rows
import org.fedlens.proto.v1.Rule
import org.fedlens.proto.v1.Source
import org.fedlens.proto.v1.Statistic
import org.fedlens.proto.v1.TensorSelector
import org.fedlens.proto.v1.Train
import org.fedlens.proto.v1.Upload
import org.fedlens.sdk.blob.FloatTensor
import org.fedlens.sdk.blob.Tensor
import org.junit.Assert.assertEquals
import org.junit.Assert.assertThrows

val SEED = ByteArray(32) { it.toByte() }
val CLASS_COUNTS: Statistic = Statistic.newBuilder().setClassCounts(ClassCounts.getDefaultInstance()).build()
val CONFUSION: Statistic = Statistic.newBuilder().setConfusion(Confusion.getDefaultInstance()).build()

fun labelDistribution(epsilon: Double): Statistic =
    Statistic.newBuilder().setLabelDistribution(LabelDistribution.newBuilder().setEpsilon(epsilon)).build()

fun source(
    download: String = "",
    state: String = "",
    value: String = "",
): Source =
    Source
        .newBuilder()
        .setState(state)
        .apply {
            if (download.isNotEmpty()) setDownload(download)
            if (value.isNotEmpty()) setValue(value)
        }.build()

fun from(
    download: String = "",
    state: String = "",
    vararg names: String,
): Rule =
    Rule
        .newBuilder()
        .setTensors(TensorSelector.newBuilder().addAllNames(names.toList()))
        .setSource(source(download, state))
        .build()

fun assembling(
    value: String,
    vararg rules: Rule,
): Instruction =
    Instruction
        .newBuilder()
        .setValue(value)
        .setAssemble(Assemble.newBuilder().addAllRules(rules.toList()))
        .build()

fun training(
    epochs: Int = 1,
    program: String = "step",
    value: String = "trained",
    start: String = "start",
    change: Train.Builder.() -> Unit = {},
): Instruction {
    val train =
        Train
            .newBuilder()
            .setProgram(program)
            .setStart(start)
            .setEpochs(epochs)
            .setRows(Rows.ROWS_TRAIN)
            .apply(change)
    return Instruction
        .newBuilder()
        .setValue(value)
        .setTrain(train)
        .build()
}

fun evaluation(label: String): Evaluation =
    Evaluation
        .newBuilder()
        .setLabel(label)
        .setValue(label)
        .build()

/** Trains everything from `global` and sends everything. */
fun wholePlan(
    epochs: Int = 1,
    change: LocalPlan.Builder.() -> Unit = {},
): LocalPlan =
    LocalPlan
        .newBuilder()
        .setFormat(1)
        .addInstructions(assembling("start", from("global")))
        .addInstructions(training(epochs))
        .addUploads(
            Upload
                .newBuilder()
                .setName("weights")
                .setValue("trained")
                .setCodec(Codec.CODEC_FLOAT32),
        ).addEvaluations(evaluation("start"))
        .addEvaluations(evaluation("trained"))
        .apply(change)
        .build()

/** Only evaluates `global`. */
fun evaluatingPlan(change: LocalPlan.Builder.() -> Unit = {}): LocalPlan =
    LocalPlan
        .newBuilder()
        .setFormat(1)
        .addInstructions(assembling("start", from("global")))
        .addEvaluations(evaluation("start"))
        .apply(change)
        .build()

/** Only asks for a statistic. */
fun countingPlan(statistic: Statistic): LocalPlan =
    LocalPlan
        .newBuilder()
        .setFormat(1)
        .addStatistics(statistic)
        .build()

fun LocalPlan.Builder.starting(vararg rules: Rule): LocalPlan.Builder = setInstructions(0, assembling("start", *rules))

fun LocalPlan.Builder.training(change: Train.Builder.() -> Unit): LocalPlan.Builder =
    setInstructions(1, training(1, change = change))

fun LocalPlan.Builder.sending(change: Upload.Builder.() -> Unit): LocalPlan.Builder =
    setUploads(0, getUploads(0).toBuilder().apply(change))

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
