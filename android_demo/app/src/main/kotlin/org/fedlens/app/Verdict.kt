package org.fedlens.app

import android.content.res.Resources
import org.fedlens.sdk.Evaluation

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
        before: Evaluation,
        after: Evaluation,
    ): String = resources.getString(text, after.correct, after.count, before.correct)

    companion object {
        fun of(
            before: Evaluation,
            after: Evaluation,
        ): Verdict =
            when {
                after.correct > before.correct -> MORE
                after.correct < before.correct -> FEWER
                else -> AS_MANY
            }
    }
}
