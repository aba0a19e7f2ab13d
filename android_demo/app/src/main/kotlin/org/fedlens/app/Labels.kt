package org.fedlens.app

/** The labels of evaluations that a server's local plans usually have. */
internal object Labels {
    /** Before training. */
    const val START = "start"

    /** After training. */
    const val TRAINED = "trained"
}
