package org.fedlens.app

import android.content.res.Resources

/** How a count of right photos compares with an earlier one of the same photos. */
internal enum class Verdict(
    private val text: Int,
) {
    MORE(R.string.more_right),
    FEWER(R.string.fewer_right),
    AS_MANY(R.string.as_many_right),
    ;

    /** The verdict in words, with both counts. */
    fun said(
        resources: Resources,
        before: Int,
        after: Int,
        of: Int,
    ): String = resources.getString(text, after, of, before)

    companion object {
        fun of(
            before: Int,
            after: Int,
        ): Verdict =
            when {
                after > before -> MORE
                after < before -> FEWER
                else -> AS_MANY
            }
    }
}
