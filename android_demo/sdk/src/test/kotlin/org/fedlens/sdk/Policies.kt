package org.fedlens.sdk

/** The policy of an owner who has agreed to everything but tables. */
val AGREED =
    Policy(
        upload = true,
        answerClassCounts = true,
        answerEvaluation = true,
        answerConfusion = true,
        answerLabelDistribution = true,
    )
