package org.fedlens.sdk.engine

import com.google.gson.JsonObject
import org.fedlens.proto.v1.Assignment
import org.fedlens.proto.v1.ProgramFormat
import org.fedlens.proto.v1.Slot
import org.fedlens.proto.v1.SlotKind
import org.fedlens.sdk.Bundle
import org.fedlens.sdk.Manifests
import org.fedlens.sdk.Vectors
import org.fedlens.sdk.blob.FloatTensor
import org.fedlens.sdk.blob.Tensor
import org.fedlens.sdk.blob.TensorSpec
import org.fedlens.sdk.floats
import org.fedlens.sdk.ints
import org.fedlens.sdk.list
import org.fedlens.sdk.longs
import org.fedlens.sdk.objects
import org.fedlens.sdk.tensors
import org.junit.Assert.assertEquals
import java.io.File
import kotlin.math.abs

/**
 * The test vectors that need an engine, for any runtime. These are no tests by themselves, so that the same code checks
 * the runtime of a JVM and that of a device.
 *
 * @param folder Where the runtime's trials are noted.
 */
class ProgramVectors(
    private val runtime: ProgramRuntime,
    private val folder: File,
) {
    private val bundle = Bundle.open(Vectors.file("bundle"))
    private val programs = Vectors.json("programs.json")
    private val vectors = Vectors.json("plan/plan.json")

    /** All checks, by name. */
    val checks: Map<String, () -> Unit> =
        mapOf("embed" to ::embed, "step" to ::step, "predict" to ::predict, "derive" to ::derive, "train" to ::train)

    /** The features of photos are those of the vectors. */
    fun embed() {
        engine().use { engine ->
            for (each in programs.objects("embed")) {
                assertNear("features", each["features"].floats(), engine.embed(each["photo"].floats()))
            }
        }
    }

    /** Weights, state, loss and logits after each step are the vectors', whatever stands in masked rows. */
    fun step() {
        val vector = programs.getAsJsonObject("step")
        val hyper = vector.getAsJsonObject("hyper")
        val carried = vector.tensors("weight") + vector.tensors("optimiser")
        run("step") { slots, outputs, program ->
            for ((slot, argument) in slots.zip(program.arguments)) {
                val values = argument.asFloatBuffer()
                when (slot.kind) {
                    SlotKind.SLOT_KIND_HYPER -> values.put(hyper[slot.name].asFloat)
                    SlotKind.SLOT_KIND_REFERENCE -> values.put(vector.tensors("reference").getValue(slot.name).floats())
                    SlotKind.SLOT_KIND_WEIGHT, SlotKind.SLOT_KIND_OPTIMISER ->
                        values.put(carried.getValue(slot.name).floats())
                    else -> Unit
                }
            }
            for (batch in vector.objects("batches")) {
                for ((slot, argument) in slots.zip(program.arguments)) {
                    when (slot.kind) {
                        SlotKind.SLOT_KIND_INPUT -> argument.asFloatBuffer().put(batch["input"].floats())
                        SlotKind.SLOT_KIND_MASK -> argument.asFloatBuffer().put(batch["mask"].floats())
                        SlotKind.SLOT_KIND_LABEL -> argument.asLongBuffer().put(batch["label"].longs())
                        else -> Unit
                    }
                }
                program.run()
                val expected = batch.getAsJsonObject("outputs")
                for ((slot, result) in outputs.zip(program.results)) {
                    val wanted = expected[slot.kind.name.removePrefix("SLOT_KIND_").lowercase()].asJsonObject
                    val array = if (slot.name.isEmpty()) wanted else wanted.getAsJsonObject(slot.name)
                    val found = FloatArray(result.capacity() / 4).also { result.asFloatBuffer().get(it) }
                    val read =
                        if (slot.kind ==
                            SlotKind.SLOT_KIND_LOGITS
                        ) {
                            batch["real_rows"].asInt * CLASSES
                        } else {
                            found.size
                        }
                    assertNear(slot.name, array.floats().copyOf(read), found.copyOf(read))
                }
            }
        }
    }

    /** The logits of real rows are those of the vectors. */
    fun predict() {
        val vector = programs.objects("predict").single()
        val real = vector["mask"].floats().count { it == 1f }
        val inputs = vector["input"].floats().let { it.copyOf(it.size / 4 * real) }
        val found = engine().use { it.predict(vector.tensors("weight"), inputs) }
        assertNear("logits", vector["logits"].floats().copyOf(real * CLASSES), found)
    }

    /** Programs that derive give the results of the vectors. */
    fun derive() {
        for (vector in programs.objects("derive")) {
            val name = vector["name"].asString
            val inputs = vector.getAsJsonObject("inputs")
            val present = inputs.getAsJsonObject("present")?.entrySet().orEmpty()
            val absent = present.filter { it.value.floats()[0] == 0f }.map { it.key }
            val references =
                inputs
                    .tensors("reference")
                    .entries
                    .groupBy({ it.key.substringBefore('/') }) { it.key.substringAfter('/') to it.value }
                    .mapValues { it.value.toMap() }
            val hyper = inputs.getAsJsonObject("hyper")?.entrySet().orEmpty()
            val found =
                engine().use { engine ->
                    engine.derive(
                        name,
                        hyper.associate { it.key to it.value.floats()[0].toDouble() },
                        references - absent.toSet(),
                        realRows(inputs, vector["real_rows"].asInt),
                    )
                }
            val expected = vector.tensors("outputs")
            assertEquals(name, expected.keys, found.keys)
            for ((tensor, values) in expected) assertNear(tensor, values.floats(), found.getValue(tensor).floats())
        }
    }

    private fun realRows(
        inputs: JsonObject,
        count: Int,
    ): Rows? {
        if (count == 0) return null
        val labels = inputs.getAsJsonObject("label")[""].longs()
        val features = inputs.getAsJsonObject("input")[""].floats()
        return Rows(features.copyOf(features.size / labels.size * count), labels.copyOf(count))
    }

    /** The trainings of the vectors' local plan give its losses and its trained weights. */
    fun train() {
        val assignment = Assignment.parseFrom(Vectors.bytes("plan/assignment.bin"))
        val train = vectors.getAsJsonObject("train")
        val rows = Rows(train["features"].floats(), train.list("labels").ints().map { it.toLong() }.toLongArray())
        val start = vectors.getAsJsonObject("sets").tensors("global")
        val losses = mutableListOf<Float>()
        var weights: Map<String, Tensor> = start
        engine().use { engine ->
            val trainings = assignment.localPlan.instructionsList.filter { it.hasTrain() }
            for ((training, batches) in trainings.map { it.train }.zip(vectors.list("batches"))) {
                weights =
                    engine.train(
                        training.program,
                        weights,
                        rows,
                        batches.asJsonArray.map { it.asJsonArray.ints().toIntArray() }.asSequence(),
                        training.hyperValuesList.associate { it.name to it.value },
                        mapOf("global" to start),
                        onStep = losses::add,
                    )
            }
        }
        assertNear("losses", vectors["losses"].floats(), losses.toFloatArray())
        val trained = vectors.getAsJsonObject("uploads").tensors("weights")
        assertEquals(trained.keys, weights.keys)
        for ((name, tensor) in trained) assertNear(name, tensor.floats(), weights.getValue(name).floats())
    }

    private fun engine() = ProgramEngine(bundle, runtime, folder, CountedCrashes())

    private fun run(
        name: String,
        use: (List<Slot>, List<Slot>, LoadedProgram) -> Unit,
    ) {
        val message = Manifests.program(bundle.manifest, name)
        val inputs = message.inputsList.filter { it.kind != SlotKind.SLOT_KIND_FROZEN }
        val replaced =
            message.outputsList.map { out ->
                inputs.indexOfFirst { it.kind == out.kind && it.name == out.name }
            }
        val form = ProgramForm(name, inputs.map(::spec), message.outputsList.map(::spec), replaced)
        val file = bundle.part(Manifests.programPart(bundle.manifest, name, ProgramFormat.PROGRAM_FORMAT_PTE))
        runtime.load(form, file).use { use(inputs, message.outputsList, it) }
    }

    private fun spec(slot: Slot) = TensorSpec(slot.name, slot.dtype, slot.shapeList)

    private fun Tensor.floats() = (this as FloatTensor).toArray()

    /**
     * The error by the definition of `tests/vectors/README.md`: relative to the greatest expected value, or to 1 if
     * that is larger.
     */
    private fun assertNear(
        what: String,
        expected: FloatArray,
        found: FloatArray,
    ) {
        assertEquals(what, expected.size, found.size)
        val scale = maxOf(1f, expected.maxOf { abs(it) })
        val largest = expected.indices.maxOf { abs(expected[it] - found[it]) }
        assertEquals(what, 0f, largest, programs["tolerance"].asFloat * scale)
    }

    private companion object {
        const val CLASSES = 3
    }
}
