package org.fedlens.sdk

/** Mark code that calls what Android has since API [level], and that runs on such phones only. */
@Target(AnnotationTarget.CLASS, AnnotationTarget.FUNCTION)
@Retention(AnnotationRetention.BINARY)
internal annotation class NewerAndroid(
    val level: Int,
)
