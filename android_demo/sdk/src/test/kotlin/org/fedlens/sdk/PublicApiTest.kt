package org.fedlens.sdk

import kotlinx.validation.api.dump
import kotlinx.validation.api.filterOutNonPublic
import kotlinx.validation.api.loadApiFromJvmClasses
import org.junit.Assert.assertEquals
import org.junit.Test
import java.io.File

/** What apps may call, as `sdk/api/sdk.api` has it: a change of it is seen in a review. */
class PublicApiTest {
    private val found =
        File("target/classes")
            .walk()
            .filter { it.extension == "class" }
            .sorted()
            .map { it.inputStream() }
            .loadApiFromJvmClasses()
            .filterOutNonPublic(listOf("org.fedlens.proto"))
            .dump(StringBuilder())
            .toString()

    @Test
    fun `the public API is the one that is written down`() {
        val written = File("api/sdk.api")
        val fresh = File("target/sdk.api").apply { writeText(found) }

        assertEquals("if this is meant: cp $fresh $written", if (written.exists()) written.readText() else "", found)
    }

    @Test
    fun `no message of the wire is in the public API`() {
        val messages = listOf("org/fedlens/proto/", "com/google/protobuf/")

        assertEquals(emptyList<String>(), found.lines().filter { line -> messages.any { it in line } })
    }
}
