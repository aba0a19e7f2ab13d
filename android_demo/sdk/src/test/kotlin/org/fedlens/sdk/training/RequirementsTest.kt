package org.fedlens.sdk.training

import com.google.protobuf.ByteString
import org.fedlens.proto.v1.Answer
import org.fedlens.proto.v1.Assignment
import org.fedlens.proto.v1.Binding
import org.fedlens.proto.v1.BlobSet
import org.fedlens.proto.v1.BundleClass
import org.fedlens.proto.v1.ClassCounts
import org.fedlens.proto.v1.Derive
import org.fedlens.proto.v1.Instruction
import org.fedlens.proto.v1.LocalPlan
import org.fedlens.proto.v1.Manifest
import org.fedlens.proto.v1.ProgramFormat
import org.fedlens.proto.v1.Rows
import org.fedlens.proto.v1.Source
import org.fedlens.proto.v1.Statistic
import org.fedlens.sdk.AGREED
import org.fedlens.sdk.AssignmentException
import org.fedlens.sdk.AssignmentException.Reason
import org.fedlens.sdk.JsonMessages
import org.fedlens.sdk.Policy
import org.fedlens.sdk.Vectors
import org.fedlens.sdk.objects
import org.fedlens.sdk.plan.Plans
import org.fedlens.sdk.string
import org.fedlens.sdk.toHex
import org.junit.Assert.assertEquals
import org.junit.Assert.assertThrows
import org.junit.Assert.assertTrue
import org.junit.Test

class RequirementsTest {
    private val bundle = SummingBundle()

    private fun assignment(
        plan: LocalPlan = wholePlan(),
        change: Assignment.Builder.() -> Unit = {},
    ): Assignment =
        Assignment
            .newBuilder()
            .setTask(1)
            .setRound(1)
            .setBundle(ByteString.copyFrom(bundle.id))
            .setSeed(ByteString.copyFrom(SEED))
            .addSets(BlobSet.newBuilder().setName("global").setSize(1))
            .setLocalPlan(plan)
            .setAnswer(Answer.ANSWER_UPDATE)
            .apply(change)
            .build()

    private fun refusal(assignment: Assignment): String {
        val error =
            assertThrows(AssignmentException::class.java) { Requirements.check(assignment, bundle.manifest, AGREED) }
        assertEquals(Reason.UNSUPPORTED, error.reason)
        return error.message.orEmpty()
    }

    private fun forbidden(
        plan: LocalPlan,
        policy: Policy = AGREED,
    ): String {
        val error =
            assertThrows(AssignmentException::class.java) {
                Requirements.checkPolicy(assignment(plan), policy)
            }
        assertEquals(Reason.POLICY, error.reason)
        return error.message.orEmpty()
    }

    @Test
    fun `an ordinary assignment is accepted`() {
        Requirements.checkPinned(bundle.id, AGREED.copy(bundles = setOf(bundle.id.toHex())))
        Requirements.checkPolicy(assignment(), AGREED)
        Requirements.checkBundle(bundle.manifest)
        Requirements.check(assignment(), bundle.manifest, AGREED)
    }

    @Test
    fun `what does not fit the bundle or this device is refused by name`() {
        assertEquals(
            "not supported: 1 extractors; the bundle takes 0 side by side",
            refusal(assignment(wholePlan { addExtractors("cluster_0") })),
        )
        val short = assignment { seed = ByteString.copyFromUtf8("short") }
        assertEquals("not supported: a seed of 5 bytes", refusal(short))
        // `start` and `trained` have 8 floats each. `step` takes the weights, 4 rows of 3 floats, 4 labels of 8 bytes
        // and 2 hyper-values, and gives the weights, a loss and 4 times 2 logits.
        val needed = 4L * (8 + 8) + 4 * (8 + 12 + 2 + 8 + 1 + 8) + 32
        Requirements.check(assignment(), bundle.manifest, AGREED, memory = needed)
        val error =
            assertThrows(AssignmentException::class.java) {
                Requirements.check(assignment(), bundle.manifest, AGREED, memory = needed - 1)
            }
        assertEquals(Reason.UNSUPPORTED, error.reason)
    }

    @Test
    fun `a table is answered if the policy allows its name, and not beside noisy shares`() {
        val vector = Vectors.json("plans.json")
        val manifest =
            JsonMessages.of<Manifest>(vector.getAsJsonObject("manifests").getAsJsonObject("masked"))
        val sums = vector.objects("plans").single { it.string("name").startsWith("sums over the train photos") }
        val plan = JsonMessages.of<Assignment>(sums.getAsJsonObject("assignment")).localPlan
        val sets = Plans.downloads(plan, manifest).map { BlobSet.newBuilder().setName(it).setSize(1).build() }
        val allowed = AGREED.copy(allowTables = setOf("sums", "means"))

        fun check(
            plan: LocalPlan,
            policy: Policy,
        ) = Requirements.check(assignment(plan) { addAllSets(sets) }, manifest, policy)
        check(plan, allowed)
        val refused = assertThrows(AssignmentException::class.java) { check(plan, AGREED) }
        assertEquals(Reason.POLICY, refused.reason)
        assertEquals("this client's policy: 'means' does not leave this device", refused.message)
        val beside = plan.toBuilder().clearStatistics().addStatistics(labelDistribution(1.0)).build()
        assertEquals(
            Reason.POLICY,
            assertThrows(AssignmentException::class.java) { check(beside, allowed) }.reason,
        )

        val kept = Binding.newBuilder().setSource(Source.newBuilder().setState("kept"))
        val ofKept = plan.toBuilder().clearInstructions()
        for (each in plan.instructionsList) {
            val derive = each.derive.toBuilder().clearRows().clearBindings().addBindings(kept)
            ofKept.addInstructions(if (each.hasDerive()) each.toBuilder().setDerive(derive).build() else each)
        }
        assertTrue(Plans.isAboutPhotos(ofKept.build(), ofKept.uploadsList.first { it.name == "means" }.value))
    }

    @Test
    fun `the initial weights are a set that every bundle brings along`() {
        val plan = wholePlan { starting(from("initial", state = "mine")) }
        Requirements.check(assignment(plan), bundle.manifest, AGREED.copy(allowTables = setOf("state/mine")))
        val refused =
            assertThrows(AssignmentException::class.java) {
                Requirements.check(assignment(plan), bundle.manifest, AGREED)
            }
        assertEquals("this client's policy: 'state/mine' does not leave this device", refused.message)
    }

    @Test
    fun `too few photos or batches are not learnt from`() {
        val plan = wholePlan {}

        fun refusal(
            photos: Int,
            policy: Policy,
        ) = assertThrows(AssignmentException::class.java) {
            Requirements.checkAmounts(plan, bundle.manifest, photos, 0, policy)
        }.also { assertEquals(Reason.POLICY, it.reason) }.message
        assertEquals("this client's policy: 7 photos to train on; it takes 8 or more", refusal(7, AGREED))
        assertEquals(
            "this client's policy: training 'trained' takes 2 batches; it takes 3 or more",
            refusal(8, AGREED.copy(leastBatches = 3L)),
        )
        Requirements.checkAmounts(plan, bundle.manifest, 8, 0, AGREED)
    }

    @Test
    fun `few photos are not counted or measured on either`() {
        fun refusal(
            plan: LocalPlan,
            photos: Int,
            validation: Int,
        ) = assertThrows(AssignmentException::class.java) {
            Requirements.checkAmounts(plan, bundle.manifest, photos, validation, AGREED)
        }.message
        val asked = Statistic.newBuilder().setClassCounts(ClassCounts.getDefaultInstance())
        val counts = LocalPlan.newBuilder().addStatistics(asked).build()
        assertEquals("this client's policy: 7 photos to train on; it takes 8 or more", refusal(counts, 7, 0))
        val derive = Instruction.newBuilder().setDerive(Derive.newBuilder().setRows(Rows.ROWS_VALIDATION))
        val measures = LocalPlan.newBuilder().addInstructions(derive).build()
        assertEquals("this client's policy: 7 photos to measure on; it takes 8 or more", refusal(measures, 28, 7))
        Requirements.checkAmounts(measures, bundle.manifest, 32, 8, AGREED)
    }

    @Test
    fun `a bundle for other engines is refused with the reason bundle`() {
        val whole = SummingBundle(bundleClass = BundleClass.BUNDLE_CLASS_WHOLE_MODEL)
        val elsewhere = SummingBundle(programFormats = listOf(ProgramFormat.PROGRAM_FORMAT_PT2))
        val found =
            listOf(whole, elsewhere).map { unfit ->
                assertThrows(AssignmentException::class.java) { Requirements.checkBundle(unfit.manifest) }
            }
        assertEquals(listOf(Reason.BUNDLE, Reason.BUNDLE), found.map { it.reason })
        assertTrue(found[0].message, "trains all layers" in found[0].message.orEmpty())
        assertEquals(
            "the bundle has program 'step', but not for phones (.pte): export it with --target pte",
            found[1].message,
        )
    }

    @Test
    fun `a policy refuses with its own reason`() {
        val plan = wholePlan { addStatistics(CLASS_COUNTS).addStatistics(CONFUSION) }
        val refused =
            mapOf(
                AGREED.copy(upload = false) to "trained weights are not uploaded",
                AGREED.copy(answerClassCounts = false) to "class counts are not answered",
                AGREED.copy(answerEvaluation = false) to "evaluation results are not answered",
                AGREED.copy(answerConfusion = false) to "confusion matrices are not answered",
            )
        for ((policy, what) in refused) assertEquals("this client's policy: $what", forbidden(plan, policy))
    }

    @Test
    fun `who uploads nothing still takes part in what sends no weights`() {
        val plan = evaluatingPlan()
        Requirements.checkPolicy(assignment(plan), AGREED.copy(upload = false))
        Requirements.check(assignment(plan), bundle.manifest, AGREED)
    }

    private fun noisy(
        epsilon: Double,
        change: LocalPlan.Builder.() -> Unit = {},
    ) = wholePlan { clearEvaluations().addStatistics(labelDistribution(epsilon)).change() }

    @Test
    fun `a label distribution is answered within the policy's epsilons`() {
        for (epsilon in listOf(0.5, 8.0)) {
            Requirements.checkPolicy(assignment(noisy(epsilon)), AGREED.copy(leastEpsilon = 0.5, mostEpsilon = 8.0))
        }
        Requirements.checkPolicy(assignment(noisy(1e-3)), AGREED)
        val refused =
            mapOf(
                AGREED.copy(answerLabelDistribution = false) to "label distributions are not answered",
                AGREED.copy(leastEpsilon = 2.0) to "a label distribution with epsilon 1; answered are 2 to inf",
                AGREED.copy(mostEpsilon = 0.5) to "a label distribution with epsilon 1; answered are 0 to 0.5",
            )
        for ((policy, what) in refused) assertEquals("this client's policy: $what", forbidden(noisy(1.0), policy))
    }

    @Test
    fun `nothing exact is answered beside a label distribution`() {
        val text =
            "this client's policy: nothing measured exactly is answered beside a label distribution, whose noise it " +
                "would undo"
        val exact =
            listOf(
                noisy(1.0) { addStatistics(CLASS_COUNTS) },
                noisy(1.0) { addStatistics(CONFUSION) },
                noisy(1.0) { addEvaluations(evaluation("start")) },
            )
        for (plan in exact) assertEquals(text, forbidden(plan))
    }

    @Test
    fun `capabilities name programs for phones, frozen backbones and the models`() {
        val policy = AGREED.copy(allowTables = setOf("means", "choice"))
        val capabilities = Requirements.capabilities(listOf("alexnet"), policy)
        assertEquals(1 to listOf("choice", "means"), capabilities.planFormat to capabilities.tablesList)
        assertEquals(listOf(ProgramFormat.PROGRAM_FORMAT_PTE), capabilities.formatsList)
        assertEquals(listOf(BundleClass.BUNDLE_CLASS_FROZEN_BACKBONE), capabilities.bundleClassesList)
        assertEquals(listOf("alexnet"), capabilities.modelsList)
    }
}
