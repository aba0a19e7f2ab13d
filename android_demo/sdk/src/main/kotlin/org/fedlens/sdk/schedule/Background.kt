package org.fedlens.sdk.schedule

/** What has become of learning in the background. */
public enum class Background {
    /** Nothing is scheduled. */
    OFF,

    /** A job waits for its conditions, or for its next period. */
    SCHEDULED,

    /** The user has asked for a round, and Android is to start its job. */
    REQUESTED,

    /** A job is running. */
    RUNNING,

    /** Android has stopped the last job, for instance because a condition has ended. The next one goes on. */
    INTERRUPTED,

    /** The phone is too hot. The next job goes on. */
    TOO_HOT,

    /** Android gives this app no time for jobs now, or the app has too many of them. */
    OUT_OF_QUOTA,

    /** The user has ended the job in Android's task manager; the next period begins another. */
    ENDED_BY_USER,

    /** The client has ended for a reason that waiting does not resolve; its state says which. Nothing is scheduled. */
    GIVEN_UP,
}
