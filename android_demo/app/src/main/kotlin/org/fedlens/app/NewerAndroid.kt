package org.fedlens.app

/** Mark a function that calls what Android has since API [level], and that is called on such phones only. */
@Target(AnnotationTarget.FUNCTION)
@Retention(AnnotationRetention.BINARY)
internal annotation class NewerAndroid(
    val level: Int,
)
