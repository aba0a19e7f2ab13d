package org.fedlens.app

/** Calls what Android has since API [level], and is called on such phones alone. */
@Target(AnnotationTarget.FUNCTION)
@Retention(AnnotationRetention.BINARY)
internal annotation class NewerAndroid(
    val level: Int,
)
