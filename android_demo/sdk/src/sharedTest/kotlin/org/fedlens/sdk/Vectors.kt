package org.fedlens.sdk

import com.google.gson.JsonArray
import com.google.gson.JsonElement
import com.google.gson.JsonObject
import com.google.gson.JsonParser
import org.fedlens.sdk.blob.FloatTensor
import org.fedlens.sdk.blob.LongTensor
import org.fedlens.sdk.blob.Tensor
import java.io.File
import java.nio.ByteBuffer
import java.nio.ByteOrder

/** The test vectors of the repository; `tests/vectors/README.md` describes their forms. */
object Vectors {
    val folder: File =
        File(checkNotNull(System.getProperty("fedlens.repository")) { "run by Maven" }, "tests/vectors").canonicalFile

    fun file(path: String): File = File(folder, path)

    fun bytes(path: String): ByteArray = file(path).readBytes()

    fun json(path: String): JsonObject = JsonParser.parseString(file(path).readText()).asJsonObject
}

fun String.unhex(): ByteArray = ByteArray(length / 2) { substring(2 * it, 2 * it + 2).toInt(16).toByte() }

fun JsonObject.string(key: String): String = get(key).asString

fun JsonObject.int(key: String): Int = get(key).asInt

fun JsonObject.hex(key: String): ByteArray = string(key).unhex()

fun JsonObject.list(key: String): JsonArray = getAsJsonArray(key)

fun JsonObject.objects(key: String): List<JsonObject> = list(key).map { it.asJsonObject }

fun JsonArray.ints(): List<Int> = map { it.asInt }

/** An array as a tensor. */
fun JsonElement.tensor(): Tensor {
    val shape = asJsonObject.list("shape").map { it.asLong }
    val raw = ByteBuffer.wrap(asJsonObject.hex("hex")).order(ByteOrder.LITTLE_ENDIAN)
    return when (asJsonObject.string("dtype")) {
        "float32" -> FloatTensor.of(shape, FloatArray(raw.remaining() / 4) { raw.getFloat() })
        "int64" -> LongTensor.of(shape, LongArray(raw.remaining() / 8) { raw.getLong() })
        else -> error("an array of another type")
    }
}

fun JsonElement.floats(): FloatArray = (tensor() as FloatTensor).toArray()

fun JsonElement.longs(): LongArray = (tensor() as LongTensor).toArray()

fun JsonObject.tensors(key: String): Map<String, Tensor> =
    getAsJsonObject(key).entrySet().associate { it.key to it.value.tensor() }

/** A tensor's shape and elements, bit by bit, for comparisons. */
fun Tensor.content(): Pair<List<Long>, List<Number>> =
    when (this) {
        is FloatTensor -> shape.toList() to toArray().map { it.toRawBits() }
        is LongTensor -> shape.toList() to toArray().toList()
    }

fun Map<String, Tensor>.content(): Map<String, Pair<List<Long>, List<Number>>> = mapValues { it.value.content() }
