package org.fedlens.sdk

import com.google.gson.JsonArray
import com.google.gson.JsonElement
import org.junit.Assert.assertEquals
import org.junit.Test

class VectorsTest {
    @Test
    fun `every file of the vectors is read by a test`() {
        val listed =
            READ_BY_NAME +
                named("blobs/blobs.json", "blobs", "file") +
                named("messages/messages.json", "messages", "file") +
                named("statements/statements.json", "statements", "file") +
                named("updates/updates.json", "updates", "file") +
                named("photos/photos.json", "photos", "photo", "expected") +
                Vectors.json("photos/photos.json").list("refused").map { "photos/refused/${it.asString}" } +
                // Each is hashed when the bundle is opened.
                checkNotNull(Vectors.file("bundle/parts").list()).map { "bundle/parts/$it" } +
                named("plan/plan.json", "plan/album", "file")
        val found =
            Vectors.folder
                .walk()
                .onEnter { it.name != "__pycache__" }
                .filter { it.isFile && !it.name.startsWith(".") && it.extension != "py" && it.name != "README.md" }
                .map { it.relativeTo(Vectors.folder).invariantSeparatorsPath }
        assertEquals(emptySet<String>(), found.toSet() - listed)
        assertEquals(emptySet<String>(), listed - found.toSet())
    }

    /** The index itself, and every file that it names anywhere under one of these keys. */
    private fun named(
        index: String,
        folder: String,
        vararg keys: String,
    ): Set<String> {
        val found = mutableSetOf(index)

        fun look(element: JsonElement) {
            if (element is JsonArray) element.forEach(::look)
            if (!element.isJsonObject) return
            for ((key, value) in element.asJsonObject.entrySet()) {
                if (key in keys && value.isJsonPrimitive) found += "$folder/${value.asString}" else look(value)
            }
        }
        look(Vectors.json(index))
        return found
    }

    private companion object {
        /**
         * The slots and files of `programs.json`; its numbers, and those of local training, need an engine. The demo app
         * reads `links.json`.
         */
        val READ_BY_NAME =
            setOf(
                "draws.json",
                "evaluation.json",
                "links.json",
                "plans.json",
                "programs.json",
                "bundle/manifest.pb",
                "plan/assignment.bin",
                "plan/global.blob",
                "plan/upload-choice.blob",
                "plan/upload-predictions.blob",
                "plan/upload-weights.blob",
                "plan/update.bin",
            )
    }
}
