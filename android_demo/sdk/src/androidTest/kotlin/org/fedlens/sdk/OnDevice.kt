package org.fedlens.sdk

import android.app.Activity
import android.app.Instrumentation
import org.fedlens.sdk.engine.ProgramVectors
import org.fedlens.sdk.photo.PhotoVectors
import org.fedlens.sdk.schedule.Conditions
import org.fedlens.sdk.schedule.JobIds
import org.fedlens.sdk.schedule.LearningJobs
import org.fedlens.sdk.store.KeystoreSecret
import org.junit.Assert.assertArrayEquals
import org.junit.Assert.assertEquals
import org.junit.Assert.assertFalse
import org.junit.Assert.assertTrue
import java.io.File
import java.io.IOException

/**
 * Checks that only a device or an emulator can make: with ExecuTorch's own library, Android's decoders and keystore, its
 * jobs, and its rules for processes.
 *
 *     gradle :sdk:connectedAndroidTest
 *
 * FedLens's own build compiles this class but has not run it. Results are told as `am instrument -r` prints them, which
 * Gradle reads; AndroidX is not needed for that.
 */
class OnDevice : Instrumentation() {
    override fun onCreate(arguments: android.os.Bundle?) {
        super.onCreate(arguments)
        start()
    }

    override fun onStart() {
        super.onStart()
        val folder = File(targetContext.cacheDir, "on-device")
        val checks =
            try {
                folder.deleteRecursively()
                for (name in VECTORS) copy(name, File(folder, "tests/vectors/$name"))
                // Where the vectors are looked for.
                System.setProperty("fedlens.repository", folder.path)
                checks(folder)
            } catch (error: IOException) {
                mapOf("vectors" to { throw error })
            }
        var failed = 0
        checks.entries.forEachIndexed { i, (name, check) ->
            tell(STARTED, name, i, checks.size)
            val error = runCatching(check).exceptionOrNull()
            if (error != null) failed++
            tell(if (error == null) PASSED else FAILED, name, i, checks.size, error)
        }
        val result = android.os.Bundle()
        result.putString(REPORT_KEY_STREAMRESULT, "\n${checks.size - failed} of ${checks.size} checks passed\n")
        finish(Activity.RESULT_OK, result)
    }

    private fun checks(folder: File): Map<String, () -> Unit> {
        val platform = AndroidPlatform(targetContext)
        val runtimes = listOf("ofTheApp" to platform.runtime, "ofItsOwn" to platform.separateRuntime(false, false))
        val programs =
            runtimes.flatMap { (process, runtime) ->
                // Before Android 11 there is no process of its own.
                if (runtime == null) return@flatMap emptyList()
                val tried = File(folder, process).also { it.mkdirs() }
                ProgramVectors(runtime, tried).checks.map { (name, check) -> "${name}InAProcess_$process" to check }
            }
        return programs.toMap() +
            mapOf(
                "photos" to { PhotoVectors(platform.decoder, nearly = setOf("grey-16-bit.png")).check() },
                "secretIsKept" to { secretIsKept(File(folder, "secret")) },
                "jobsArePending" to ::jobsArePending,
            )
    }

    private fun secretIsKept(file: File) {
        val store = KeystoreSecret(file, alias = "org.fedlens.on-device")
        try {
            val secret = store.secret()
            assertEquals(KeyedHash.DIGEST_BYTES, secret.size)
            assertArrayEquals(secret, KeystoreSecret(file, alias = "org.fedlens.on-device").secret())
            store.delete()
            assertFalse(secret.contentEquals(store.secret()))
        } finally {
            store.delete()
        }
    }

    private fun jobsArePending() {
        val jobs = LearningJobs(targetContext, Conditions(), JobIds(), isShown = false)
        try {
            jobs.schedule()
            assertTrue(jobs.isScheduled)
        } finally {
            jobs.cancel()
        }
        assertFalse(jobs.isScheduled)
    }

    /** Copy a file or folder of the assets. */
    private fun copy(
        name: String,
        into: File,
    ) {
        val members = context.assets.list(name).orEmpty()
        if (members.isEmpty()) {
            checkNotNull(into.parentFile).mkdirs()
            context.assets.open(name).use { asset -> into.outputStream().use { asset.copyTo(it) } }
        }
        for (member in members) copy("$name/$member", File(into, member))
    }

    private fun tell(
        code: Int,
        name: String,
        index: Int,
        count: Int,
        error: Throwable? = null,
    ) {
        val status = android.os.Bundle()
        status.putString(REPORT_KEY_IDENTIFIER, javaClass.simpleName)
        status.putString("class", javaClass.name)
        status.putString("test", name)
        status.putInt("current", index + 1)
        status.putInt("numtests", count)
        if (error != null) status.putString("stack", error.stackTraceToString())
        sendStatus(code, status)
    }

    private companion object {
        val VECTORS = listOf("bundle", "photos", "plan", "programs.json")

        // What Gradle reads as a test's start, success and failure.
        const val STARTED = 1
        const val PASSED = 0
        const val FAILED = -2
    }
}
