package org.fedlens.sdk.pass

import kotlinx.coroutines.runBlocking
import org.fedlens.proto.v1.Keep
import org.fedlens.proto.v1.LocalPlan
import org.fedlens.sdk.Bundle
import org.fedlens.sdk.PassException
import org.fedlens.sdk.blob.BlobWriter
import org.fedlens.sdk.blob.Tensor
import org.fedlens.sdk.store.Result
import org.junit.After
import org.junit.Assert.assertThrows
import org.junit.Rule
import org.junit.rules.TemporaryFolder

/** Offices in a folder that is deleted in the end, and what is done in them. */
internal abstract class Offices {
    @get:Rule
    val folder = TemporaryFolder()

    val offices = ArrayList<Office>()

    @After
    fun close() = offices.forEach { it.close() }

    fun office(
        bundle: SummingBundle = SummingBundle(),
        maxCacheBytes: Long = 1 shl 20,
        engineOf: (Bundle) -> SummingEngine = ::SummingEngine,
    ) = Office(folder.newFolder(), bundle, maxCacheBytes = maxCacheBytes, engineOf = engineOf).also {
        offices += it
        it.put("global", encoded(0f))
        it.album.add("cat", 10)
        it.album.add("dog", 10)
    }

    fun encoded(
        value: Float,
        width: Int = 3,
    ): ByteArray = BlobWriter.encode(filled(value, width))

    fun Office.carryOut(
        plan: LocalPlan,
        round: Long = 1,
        task: Long = 7,
    ): Result = runBlocking { assignments.carryOut(assignment(plan, round, task), onlyTest = false) }

    fun Office.refusal(plan: LocalPlan): PassException = assertThrows(PassException::class.java) { carryOut(plan) }

    fun keeping(fallback: String) =
        wholePlan {
            setStart(0, from(fallback, kept = "mine"))
            addKeep(Keep.newBuilder().setSet("mine"))
        }

    fun uploaded(result: Result): Map<String, Tensor> = checkNotNull(result.update.blob).tensors
}
