package org.fedlens.sdk.engine

import org.fedlens.sdk.toHex

/** A crash log in memory that refuses a bundle from so many crashes on. */
class CountedCrashes(
    private val most: Int = Int.MAX_VALUE,
) : CrashLog {
    private val counts = HashMap<String, Int>()

    /** The crashes of all bundles. */
    val total: Int get() = counts.values.sum()

    override fun refusal(bundle: ByteArray): String? {
        val count = counts[bundle.toHex()] ?: 0
        return if (count >= most) "this bundle has crashed $count times" else null
    }

    override fun note(bundle: ByteArray): String = "crash ${counts.merge(bundle.toHex(), 1, Int::plus)}"
}
