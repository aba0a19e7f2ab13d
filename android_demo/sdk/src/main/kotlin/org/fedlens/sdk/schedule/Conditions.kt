package org.fedlens.sdk.schedule

import java.util.concurrent.TimeUnit

/**
 * The conditions of learning in the background. Android starts a job where all of them hold, and stops it where one ends.
 *
 * @property periodMs Milliseconds from one job to the next, 900,000 (15 minutes) or more. With more than an hour, a task
 *     whose `presence_s` is no longer takes this phone for absent between its jobs.
 * @property charging Only while the phone charges.
 * @property unmetered Only with a network that costs nothing.
 * @property idle Only while nobody uses the phone. Android then ignores back-off: a failed job comes again a period later.
 * @property batteryNotLow Not while the battery is low.
 * @property storageNotLow Not while the storage is low.
 * @property hottest The highest thermal status at which learning begins and goes on, 0 to 6 as in
 *     [android.os.PowerManager.getCurrentThermalStatus]; Android 10 and newer.
 * @property firstBackoffMs Milliseconds, 10,000 or more, after which a job that failed comes again; twice as many after
 *     the next failure, and so on up to five hours.
 */
public data class Conditions
    @JvmOverloads
    constructor(
        val periodMs: Long = TimeUnit.HOURS.toMillis(1),
        val charging: Boolean = true,
        val unmetered: Boolean = true,
        val idle: Boolean = true,
        val batteryNotLow: Boolean = true,
        val storageNotLow: Boolean = true,
        val hottest: Int = LIGHT,
        val firstBackoffMs: Long = 60_000,
    ) {
        init {
            require(periodMs >= LEAST_PERIOD_MS) { "periodMs: found $periodMs, must be $LEAST_PERIOD_MS or more" }
            require(hottest in 0..HOTTEST) { "hottest: found $hottest, must be 0 to $HOTTEST" }
            require(firstBackoffMs >= LEAST_BACKOFF_MS) {
                "firstBackoffMs: found $firstBackoffMs, must be $LEAST_BACKOFF_MS or more"
            }
        }

        private companion object {
            const val LEAST_PERIOD_MS = 900_000L
            const val LEAST_BACKOFF_MS = 10_000L
            const val LIGHT = 1
            const val HOTTEST = 6
        }
    }

/**
 * Ids of the app's jobs for [LearningService]; no other job of the app may have them. The default is far from WorkManager's
 * ids, which count up from 0 (`Configuration.Builder.setJobSchedulerJobIdRange` limits them).
 *
 * @property periodic Of learning in the background.
 * @property now Of learning that the user has asked for.
 */
public data class JobIds
    @JvmOverloads
    constructor(
        val periodic: Int = FIRST + 1,
        val now: Int = FIRST + 2,
    ) {
        init {
            require(periodic != now) { "periodic and now: found $now for both, must be two ids" }
        }

        private companion object {
            const val FIRST = 0x4645_4400
        }
    }
