package org.fedlens.jvm

/** A JSON object on one line. Values are numbers, booleans, texts, null, lists and maps of those. */
internal fun jsonLine(vararg members: Pair<String, Any?>): String = buildString { write(members.toMap()) }

private fun StringBuilder.write(value: Any?) {
    when (value) {
        null, is Boolean, is Int, is Long -> append(value)
        // JSON has no NaN or infinity.
        is Float -> if (value.isFinite()) append(value) else append("null")
        is Double -> if (value.isFinite()) append(value) else append("null")
        is LongArray -> write(value.asList())
        is Map<*, *> -> joined(value.entries, "{}") { write(it.key.toString()).append(':').write(it.value) }
        is List<*> -> joined(value, "[]") { write(it) }
        else -> write(value.toString())
    }
}

private fun StringBuilder.write(text: String): StringBuilder {
    append('"')
    for (character in text) {
        when {
            character == '"' || character == '\\' -> append('\\').append(character)
            character < ' ' || character.code in LAST_ASCII..0xffff -> append("\\u%04x".format(character.code))
            else -> append(character)
        }
    }
    return append('"')
}

private fun <T> StringBuilder.joined(
    items: Collection<T>,
    brackets: String,
    item: (T) -> Unit,
) {
    append(brackets[0])
    items.forEachIndexed { i, each ->
        if (i > 0) append(',')
        item(each)
    }
    append(brackets[1])
}

// Lines are pure ASCII, so that the console's encoding does not matter.
private const val LAST_ASCII = 0x7f
