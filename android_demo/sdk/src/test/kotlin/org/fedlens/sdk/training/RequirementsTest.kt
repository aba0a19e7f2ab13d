package org.fedlens.sdk.training

import com.google.protobuf.ByteString
import org.fedlens.proto.v1.Answer
import org.fedlens.proto.v1.Assignment
import org.fedlens.proto.v1.BlobSet
import org.fedlens.proto.v1.BundleClass
import org.fedlens.proto.v1.ClientStatistic
import org.fedlens.proto.v1.HyperValue
import org.fedlens.proto.v1.Keep
import org.fedlens.proto.v1.LocalPlan
import org.fedlens.proto.v1.ProgramFormat
import org.fedlens.proto.v1.ReferenceBinding
import org.fedlens.proto.v1.Stage
import org.fedlens.sdk.AssignmentException
import org.fedlens.sdk.AssignmentException.Reason
import org.fedlens.sdk.Policy
import org.fedlens.sdk.toHex
import org.junit.Assert.assertEquals
import org.junit.Assert.assertThrows
import org.junit.Assert.assertTrue
import org.junit.Test

class RequirementsTest {
    private val bundle = SummingBundle()
    private val referring = SummingBundle(withReference = true)
    private val known = "step, predict, another-step, embed"

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

    private fun stages(change: Stage.Builder.() -> Unit): LocalPlan =
        wholePlan { setStages(0, getStages(0).toBuilder().apply(change)) }

    private fun hyper(
        name: String,
        value: Double,
    ) = stages { addHyperValues(HyperValue.newBuilder().setName(name).setValue(value)) }

    private fun refusal(
        assignment: Assignment,
        of: SummingBundle = bundle,
    ): String {
        val error =
            assertThrows(AssignmentException::class.java) { Requirements.check(assignment, of.manifest) }
        assertEquals(Reason.UNSUPPORTED, error.reason)
        return error.message.orEmpty()
    }

    private fun forbidden(
        plan: LocalPlan,
        policy: Policy = Policy(),
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
        Requirements.checkPinned(bundle.id, Policy(bundles = setOf(bundle.id.toHex())))
        Requirements.checkPolicy(assignment(), Policy())
        Requirements.checkBundle(bundle.manifest)
        Requirements.check(assignment(), bundle.manifest)
    }

    @Test
    fun `what is not known is refused by name`() {
        val refused =
            mapOf(
                wholePlan { addStatistics(labelDistribution(0.0)) } to
                    "a label distribution with epsilon 0, which must be above 0 and finite",
                wholePlan { addStatistics(labelDistribution(1e-310)) } to
                    "a label distribution with epsilon 1.0E-310, which must be above 0 and finite",
                wholePlan { addStatistics(labelDistribution(Double.NaN)) } to
                    "a label distribution with epsilon nan, which must be above 0 and finite",
                wholePlan { addStatistics(CONFUSION).addStatistics(CONFUSION) } to
                    "the question 'confusion' asked twice",
                wholePlan { addStatistics(ClientStatistic.getDefaultInstance()) } to "the question 'unset'",
                wholePlan { sending { codecValue = 99 } } to "upload codec 99",
                wholePlan { sending { codecValue = 0 } } to "upload codec unset",
                wholePlan { sending { baseSet = "x" } } to
                    "an upload as difference from set 'x', which is not among the assignment's",
                wholePlan { evaluating { addFineTuning(Stage.getDefaultInstance()) } } to
                    "program ''; the bundle has $known",
                wholePlan { addExtractors("cluster_0") } to "1 extractors; the bundle takes 0 side by side",
                wholePlan { clearStart() } to "a local plan without start rules",
                wholePlan { setStart(0, from()) } to "a source that names no set",
                wholePlan { setStart(0, from("x")) } to "set 'x', which is not among the assignment's",
                stages { program = "collect" } to "program 'collect'; the bundle has $known",
                stages { program = "predict" } to "program 'predict' as a stage; it trains nothing",
                stages { clearEpochs() } to "a stage without epochs or steps",
                hyper("rho", 0.0) to "hyper-parameter 'rho', which the bundle does not have",
                hyper("mu", 11.0) to "hyper-parameter 'mu' = 11; allowed are 0 to 10",
                hyper("mu", Double.NaN) to "hyper-parameter 'mu' = nan; allowed are 0 to 10",
                wholePlan { addReferences(ReferenceBinding.newBuilder().setName("w")) } to
                    "reference 'w', which the bundle does not have",
                wholePlan { addKeep(Keep.getDefaultInstance()) } to "client state must have names, each once: []",
                wholePlan { repeat(2) { addKeep(Keep.newBuilder().setSet("mine")) } } to
                    "client state must have names, each once: [mine, mine]",
            )
        for ((plan, what) in refused) assertEquals("not supported: $what", refusal(assignment(plan)))
        val others =
            mapOf(
                assignment { answerValue = 0 } to "an answer of kind 0",
                assignment { answer = Answer.ANSWER_EVALUATION } to "an upload with an evaluation",
                assignment { seed = ByteString.copyFromUtf8("short") } to "a seed of 5 bytes",
            )
        for ((changed, what) in others) assertEquals("not supported: $what", refusal(changed))
    }

    @Test
    fun `the bundle's references must be bound, for stages that are thrown away too`() {
        val unbound = "not supported: a local plan that leaves the bundle's reference 'global' unbound"
        assertEquals(unbound, refusal(assignment(), referring))
        val fineTuned =
            wholePlan {
                evaluating { addFineTuning(stage()) }
                clearStages()
            }
        assertEquals(unbound, refusal(assignment(fineTuned), referring))
        val binding = ReferenceBinding.newBuilder().setName("global")
        assertEquals(
            "not supported: reference 'global' without a source",
            refusal(assignment(wholePlan { addReferences(binding) }), referring),
        )
        assertEquals(
            "not supported: a reference bound twice: [global, global]",
            refusal(assignment(wholePlan { repeat(2) { addReferences(binding) } }), referring),
        )
        Requirements.check(assignment(wholePlan { addReferences(binding.setStart(true)) }), referring.manifest)
        Requirements.check(assignment(wholePlan { clearStages() }), referring.manifest)
    }

    @Test
    fun `the initial weights are a set that every bundle brings along`() {
        Requirements.check(assignment(wholePlan { setStart(0, from("initial", kept = "mine")) }), bundle.manifest)
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
                Policy(upload = false) to "trained weights are not uploaded",
                Policy(answerClassCounts = false) to "class counts are not answered",
                Policy(answerEvaluation = false) to "evaluation results are not answered",
                Policy(answerConfusion = false) to "confusion matrices are not answered",
            )
        for ((policy, what) in refused) assertEquals("this client's policy: $what", forbidden(plan, policy))
    }

    @Test
    fun `who uploads nothing still takes part in what sends no weights`() {
        val plan = wholePlan { clearUpload() }
        Requirements.checkPolicy(assignment(plan), Policy(upload = false))
        Requirements.check(assignment(plan), bundle.manifest)
    }

    private fun noisy(
        epsilon: Double,
        change: LocalPlan.Builder.() -> Unit = {},
    ) = wholePlan { clearEvaluation().addStatistics(labelDistribution(epsilon)).change() }

    @Test
    fun `a label distribution is answered within the policy's epsilons`() {
        for (epsilon in listOf(0.5, 8.0)) {
            Requirements.checkPolicy(assignment(noisy(epsilon)), Policy(leastEpsilon = 0.5, mostEpsilon = 8.0))
        }
        Requirements.checkPolicy(assignment(noisy(1e-3)), Policy())
        val refused =
            mapOf(
                Policy(answerLabelDistribution = false) to "label distributions are not answered",
                Policy(leastEpsilon = 2.0) to "a label distribution with epsilon 1; answered are 2 to inf",
                Policy(mostEpsilon = 0.5) to "a label distribution with epsilon 1; answered are 0 to 0.5",
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
                noisy(1.0) { evaluating { atStart = true } },
                noisy(1.0) { evaluating { atEnd = true } },
                noisy(1.0) { evaluating { addFineTuning(stage()) } },
            )
        for (plan in exact) assertEquals(text, forbidden(plan))
    }

    @Test
    fun `capabilities name programs for phones, frozen backbones and the models`() {
        val capabilities = Requirements.capabilities(listOf("alexnet"))
        assertEquals(listOf(ProgramFormat.PROGRAM_FORMAT_PTE), capabilities.formatsList)
        assertEquals(listOf(BundleClass.BUNDLE_CLASS_FROZEN_BACKBONE), capabilities.bundleClassesList)
        assertEquals(listOf("alexnet"), capabilities.modelsList)
    }
}
