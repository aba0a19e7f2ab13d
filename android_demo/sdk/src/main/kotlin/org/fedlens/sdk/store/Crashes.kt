package org.fedlens.sdk.store

import org.fedlens.sdk.engine.CrashLog
import org.fedlens.sdk.toHex
import kotlin.math.ceil
import kotlin.math.min
import kotlin.math.pow

/**
 * The crashes of each bundle, over restarts of the app: another bundle of the same task begins at zero.
 *
 * @property state Keeps, for each bundle, their number and the time before which it does not run again.
 * @property nowS The clock, in seconds since the epoch.
 */
internal class Crashes(
    private val state: StateFolder,
    private val nowS: () -> Double = { System.currentTimeMillis() / MS_PER_S },
) : CrashLog {
    override fun refusal(bundle: ByteArray): String? {
        val (count, untilS) = read(bundle)
        // A clock that was set back must not keep it out for longer than the pause.
        val leftS = min(untilS - nowS(), pauseS(count))
        return if (count >= MOST_CRASHES || leftS > 0) text(bundle, count, leftS) else null
    }

    override fun note(bundle: ByteArray): String {
        val count = read(bundle).first + 1
        val pauseS = pauseS(count)
        state.set(key(bundle) to "$count ${nowS() + pauseS}".toByteArray())
        return text(bundle, count, pauseS)
    }

    private fun read(bundle: ByteArray): Pair<Int, Double> {
        val words = state.get(key(bundle))?.let { String(it).split(' ') } ?: return 0 to 0.0
        return words[0].toInt() to words[1].toDouble()
    }

    private companion object {
        const val MOST_CRASHES = 20
        const val FIRST_PAUSE_S = 60.0
        const val LONGEST_PAUSE_S = 86_400.0
        const val MS_PER_S = 1_000.0
        const val SHOWN_DIGITS = 12

        fun key(bundle: ByteArray) = "crashes ${bundle.toHex()}"

        fun pauseS(count: Int): Double = min(FIRST_PAUSE_S * 2.0.pow(maxOf(count - 1, 0)), LONGEST_PAUSE_S)

        fun text(
            bundle: ByteArray,
            count: Int,
            leftS: Double,
        ): String {
            val times = if (count == 1) "once" else "$count times"
            val ended = "bundle ${bundle.toHex().take(SHOWN_DIGITS)} has ended its process $times"
            if (count >= MOST_CRASHES) return "$ended, and does not run here again: export another bundle"
            return "$ended, and may run again in ${ceil(leftS / FIRST_PAUSE_S).toInt()} min"
        }
    }
}
