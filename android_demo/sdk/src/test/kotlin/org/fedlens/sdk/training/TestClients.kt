package org.fedlens.sdk.training

import kotlinx.coroutines.runBlocking
import org.fedlens.proto.v1.Keep
import org.fedlens.proto.v1.LocalPlan
import org.fedlens.sdk.AssignmentException
import org.fedlens.sdk.Bundle
import org.fedlens.sdk.blob.BlobWriter
import org.fedlens.sdk.blob.Tensor
import org.fedlens.sdk.store.Result
import org.junit.After
import org.junit.Assert.assertThrows
import org.junit.Rule
import org.junit.rules.TemporaryFolder

/** Clients in a temporary folder, and the actions of tests in them. */
internal abstract class TestClients {
    @get:Rule
    val folder = TemporaryFolder()

    val clients = ArrayList<TestClient>()

    @After
    fun close() = clients.forEach { it.close() }

    fun client(
        bundle: SummingBundle = SummingBundle(),
        maxCacheBytes: Long = 1 shl 20,
        trust: BundleTrust? = null,
        engineOf: (Bundle) -> SummingEngine = ::SummingEngine,
    ) = TestClient(folder.newFolder(), bundle, maxCacheBytes = maxCacheBytes, trust = trust, engineOf = engineOf).also {
        clients += it
        it.put("global", encoded(0f))
        it.album.add("cat", 10)
        it.album.add("dog", 10)
    }

    fun encoded(
        value: Float,
        width: Int = 3,
    ): ByteArray = BlobWriter.encode(filled(value, width))

    fun TestClient.carryOut(
        plan: LocalPlan,
        round: Long = 1,
        task: Long = 7,
    ): Result = runBlocking { assignments.carryOut(assignment(plan, round, task), onlyTest = false) }

    fun TestClient.refusal(plan: LocalPlan): AssignmentException =
        assertThrows(AssignmentException::class.java) {
            carryOut(plan)
        }

    fun planWithState(fallback: String) =
        wholePlan {
            starting(from(fallback, state = "mine"))
            addKeeps(Keep.newBuilder().setState("mine").setValue("trained"))
        }

    fun uploaded(result: Result): Map<String, Tensor> = result.update.blobs.single().tensors
}
