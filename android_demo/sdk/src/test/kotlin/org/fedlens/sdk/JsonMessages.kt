package org.fedlens.sdk

import com.google.gson.JsonElement
import com.google.gson.JsonObject
import com.google.protobuf.ByteString
import com.google.protobuf.Internal
import com.google.protobuf.MessageLite
import com.google.protobuf.Parser
import java.lang.reflect.Method
import java.util.Base64

/** Messages from protobuf's JSON form, which the lite runtime does not read. */
object JsonMessages {
    fun parser(type: String): Parser<out MessageLite> = parserOf(classOf(type))

    fun build(
        type: String,
        json: JsonObject,
    ): MessageLite = build(classOf(type), json)

    inline fun <reified M : MessageLite> of(json: JsonObject): M = build(M::class.java, json) as M

    fun build(
        kind: Class<*>,
        json: JsonObject,
    ): MessageLite {
        val builder = kind.getMethod("newBuilder").invoke(null) as MessageLite.Builder
        for ((name, value) in json.entrySet()) {
            val field = name.split("_").joinToString("") { it.replaceFirstChar(Char::uppercase) }
            val single = if (value.isJsonArray) "add$field" else "set$field"
            val setter = builder.javaClass.methods.first { it.name == single && takesValue(it) }
            for (one in if (value.isJsonArray) value.asJsonArray.toList() else listOf(value)) {
                setter.invoke(builder, valueOf(setter.parameterTypes[0], one))
            }
        }
        return builder.build()
    }

    private fun classOf(type: String) = Class.forName("org.fedlens.proto.v1." + type.removePrefix("fedlens_proto.v1."))

    @Suppress("UNCHECKED_CAST")
    private fun parserOf(kind: Class<*>) = kind.getMethod("parser").invoke(null) as Parser<out MessageLite>

    private fun takesValue(method: Method) =
        method.parameterCount == 1 && !MessageLite.Builder::class.java.isAssignableFrom(method.parameterTypes[0])

    private fun valueOf(
        kind: Class<*>,
        json: JsonElement,
    ): Any =
        when {
            kind == Int::class.java -> Integer.parseUnsignedInt(json.asString)
            kind == Long::class.java -> java.lang.Long.parseUnsignedLong(json.asString)
            kind == Double::class.java -> json.asDouble
            kind == Boolean::class.java -> json.asBoolean
            kind == String::class.java -> json.asString
            kind == ByteString::class.java -> ByteString.copyFrom(Base64.getDecoder().decode(json.asString))
            Internal.EnumLite::class.java.isAssignableFrom(kind) ->
                kind.enumConstants.first { (it as Enum<*>).name == json.asString }
            else -> build(kind, json.asJsonObject)
        }
}
