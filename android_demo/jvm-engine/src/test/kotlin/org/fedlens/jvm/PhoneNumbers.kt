package org.fedlens.jvm

import com.google.gson.JsonObject
import com.google.gson.JsonParser
import org.fedlens.sdk.Bundle
import org.fedlens.sdk.EngineException
import org.fedlens.sdk.toHex
import org.junit.Assume.assumeTrue
import java.io.File
import java.nio.file.Files
import java.nio.file.StandardCopyOption
import java.security.MessageDigest
import java.util.concurrent.TimeUnit

/**
 * Bundles of the real exporter, with the results of Python's engines; see `tests/phone_numbers.py`.
 *
 * Making them takes a minute, so they are cached in the folder for temporary files until a relevant source changes.
 */
object PhoneNumbers {
    private val repository =
        File(
            checkNotNull(System.getProperty("fedlens.repository")) { "run by Maven" },
        ).canonicalFile
    private val python = File(checkNotNull(System.getProperty("fedlens.python")) { "run by Maven" })
    private val folder: File by lazy(::made)
    private val SOURCES =
        listOf(
            "constraints.txt",
            "export",
            "proto",
            "edge_client/fedlens_edge_client/engines",
            "tests/phone_numbers.py",
            "tests/vectors/forms.py",
        )

    /** One case, or the test is skipped: there is no runtime here. */
    fun case(name: String): PhoneCase {
        assumeRuntime()
        return PhoneCase(File(folder, name))
    }

    /** Skips the test, with the reason, where the native library could not be built. */
    fun assumeRuntime() {
        val missing =
            try {
                JniRuntime().version
                null
            } catch (error: EngineException) {
                error.message
            }
        assumeTrue(missing, missing == null)
    }

    private fun made(): File {
        val cached = File(System.getProperty("java.io.tmpdir"), "fedlens-phone-numbers-${fingerprint()}")
        if (cached.isDirectory) return cached
        val fresh = Files.createTempDirectory(cached.parentFile.toPath(), "fedlens-phone-numbers-").toFile()
        val log = File(fresh, "log.txt")
        val process =
            ProcessBuilder(python.path, "-m", "tests.phone_numbers", fresh.path)
                .directory(repository)
                .redirectErrorStream(true)
                .redirectOutput(log)
                .start()
        try {
            check(process.waitFor(30, TimeUnit.MINUTES)) { "tests.phone_numbers does not end" }
            check(process.exitValue() == 0) { "tests.phone_numbers failed:\n${log.readText()}" }
            Files.move(fresh.toPath(), cached.toPath(), StandardCopyOption.ATOMIC_MOVE)
        } catch (error: java.io.IOException) {
            // Another build has made them at the same time.
            if (!cached.isDirectory) throw error
        } finally {
            process.destroyForcibly()
            fresh.deleteRecursively()
        }
        return cached
    }

    private fun fingerprint(): String {
        val digest = MessageDigest.getInstance("SHA-256")
        digest.update("$python ${JniRuntime().version}".toByteArray())
        SOURCES
            .flatMap { File(repository, it).walk().filter { file -> file.extension in setOf("py", "txt") } }
            .sorted()
            .forEach { digest.update(it.readBytes()) }
        return digest.digest().copyOf(8).toHex()
    }
}

class PhoneCase(
    folder: File,
) {
    val bundle: Bundle = Bundle.open(File(folder, "bundle"))
    val numbers: JsonObject = JsonParser.parseString(File(folder, "numbers.json").readText()).asJsonObject
}
