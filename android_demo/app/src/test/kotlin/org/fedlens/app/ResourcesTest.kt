package org.fedlens.app

import org.junit.Assert.assertEquals
import org.junit.Assert.assertTrue
import org.junit.Test
import org.w3c.dom.Element
import java.io.File
import javax.xml.parsers.DocumentBuilderFactory

/** Texts and colours in the resource files. */
class ResourcesTest {
    @Test
    fun `every text is there in English and in German, with the same gaps to fill`() {
        val english = texts("values").filterKeys { it !in untranslated() }

        assertEquals(english.mapValues { gaps(it.value) }, texts("values-de").mapValues { gaps(it.value) })
    }

    @Test
    fun `no German text is still English`() {
        // Names and words that are the same in both.
        val same =
            setOf("Album", "Name", "FedLens %1\$s", "Server: %1\$s", "%1\$s, %2\$s", "%1\$s\\n%2\$s, %3\$s", "Pause")
        val english = texts("values")
        val left = texts("values-de").filter { (name, text) -> text == english[name] && text !in same }

        assertEquals(setOf("tensor"), left.keys)
    }

    @Test
    fun `no word of the trade stands outside the page with the details`() {
        val trade =
            mapOf(
                "values" to "rounds?|tensors?|loss|epochs?|gradients?|weights?|tasks?|federation|features?|class(es)?",
                "values-de" to "Runden?|Tensor(en)?|Verlust|Epochen?|Gradient|Gewichte?|Aufgaben?|Föderation|Klassen?",
            )
        for ((folder, words) in trade) {
            val found = texts(folder).filter { (_, text) -> Regex("\\b($words)\\b").containsMatchIn(text) }

            assertEquals(folder, emptySet<String>(), found.keys - ON_DETAILS)
        }
    }

    @Test
    fun `every text, picture, colour, size and style is used`() {
        val files = File("src/main").walk().filter { it.extension in setOf("kt", "xml") }.toList()
        val sources = files.joinToString("\n") { it.readText() }
        val named =
            VALUES
                .flatMap { (file, tags) ->
                    tags.flatMap { tag -> elements("values", file, tag).map { kind(tag) to it } }
                }.map { (kind, element) -> kind to element.getAttribute("name") }
        val drawn = File("src/main/res/drawable").list().orEmpty().map { "drawable" to it.removeSuffix(".xml") }
        val unused =
            (named + drawn).filter { (kind, name) ->
                val place = Regex.escape(name)
                val inCode = "R\\.$kind\\.${place.replace('.', '_')}\\b"
                // A style is also used by those that begin with its name.
                val inFiles = "@$kind/$place(?![\\w.])|style name=\"$place\\.|parent=\"$place\""
                !Regex("$inCode|$inFiles").containsMatchIn(sources)
            }

        assertEquals(emptyList<Pair<String, String>>(), unused)
    }

    private fun kind(tag: String) = if (tag == "string-array") "array" else tag

    @Test
    fun `both themes name the same colours`() {
        assertEquals(colours("values").keys, colours("values-night").keys)
    }

    @Test
    fun `text and signs stand out against every ground that they meet, in both themes`() {
        for (theme in listOf("values", "values-night")) {
            val colours = colours(theme)
            val weak =
                (TEXT.map { it to Contrast.OF_TEXT } + SIGNS.map { it to Contrast.OF_SIGNS }).filter { (pair, least) ->
                    Contrast.of(colours.getValue(pair.first), colours.getValue(pair.second)) < least
                }
            assertTrue("$theme: $weak", weak.isEmpty())
        }
    }

    @Test
    fun `black on white has the greatest contrast that there is`() {
        assertEquals(21.0, Contrast.of(0x000000, 0xFFFFFF), 1e-9)
        // WCAG's own example of a grey that just passes: #767676 on white, 4.54.
        assertEquals(4.54, Contrast.of(0x767676, 0xFFFFFF), 0.005)
    }

    private fun colours(folder: String): Map<String, Int> {
        val texts = elements(folder, "colors", "color").associate { it.getAttribute("name") to it.textContent }
        return texts
            .mapValues { (_, text) -> texts[text.removePrefix("@color/")] ?: text }
            .mapValues { (_, text) ->
                text
                    .removePrefix("#")
                    .takeLast(RGB_DIGITS)
                    .toInt(HEXADECIMAL)
            }
    }

    private fun texts(folder: String): Map<String, String> =
        elements(folder, "strings", "string").associate { it.getAttribute("name") to it.textContent } +
            elements(folder, "strings", "plurals").flatMap { items(it, "quantity") } +
            elements(folder, "strings", "string-array").flatMap { items(it, "place") }

    private fun items(
        group: Element,
        key: String,
    ): List<Pair<String, String>> {
        val items = group.getElementsByTagName("item")
        return (0 until items.length).map { place ->
            val item = items.item(place) as Element
            "${group.getAttribute("name")}/${item.getAttribute(key).ifEmpty { "$place" }}" to item.textContent
        }
    }

    private fun untranslated(): Set<String> =
        elements("values", "strings", "string")
            .filter { it.getAttribute("translatable") == "false" }
            .mapTo(HashSet()) { it.getAttribute("name") }

    private fun gaps(text: String): List<String> =
        Regex("%(\\d\\\$)?[sd]").findAll(text).map { it.value }.sorted().toList()

    private fun elements(
        folder: String,
        file: String,
        tag: String,
    ): List<Element> {
        val document =
            DocumentBuilderFactory
                .newInstance()
                .newDocumentBuilder()
                .parse(File("src/main/res/$folder/$file.xml"))
        val found = document.getElementsByTagName(tag)
        return (0 until found.length).map { found.item(it) as Element }
    }

    private companion object {
        val VALUES =
            mapOf(
                "strings" to listOf("string", "plurals", "string-array"),
                "colors" to listOf("color"),
                "dimens" to listOf("dimen"),
                "styles" to listOf("style"),
                "themes" to listOf("style"),
            )

        /** Texts of the page with the details. */
        val ON_DETAILS = setOf("details_round", "tensors", "answer_before", "answer_after", "answer_other")
        const val RGB_DIGITS = 6
        const val HEXADECIMAL = 16

        val TEXT =
            listOf(
                "text" to "background",
                "text" to "surface",
                "text" to "surface_high",
                "text_soft" to "background",
                "text_soft" to "surface",
                "text_soft" to "surface_high",
                "primary" to "background",
                "primary" to "surface",
                "on_primary" to "primary",
                "on_tonal" to "tonal",
                "on_warning" to "warning",
                "on_error" to "error",
                "danger" to "background",
                "danger" to "surface",
                "chart_before" to "surface",
                "chart_after" to "surface",
            )
        val SIGNS = listOf("outline" to "background", "outline" to "surface", "primary" to "surface_high")
    }
}
