package org.fedlens.sdk

import org.fedlens.proto.v1.EvaluationSums
import org.fedlens.proto.v1.UpdateHeader
import kotlin.math.exp
import kotlin.math.ln

/**
 * The evaluation of weights on photos, as sums, never ratios.
 *
 * @property count Number of photos.
 * @property correct Number of photos whose greatest logit is the label's; among equal logits the first counts.
 * @property loss Cross-entropy in nats, computed and summed in float64 from the float32 logits.
 * @property confusion Number of photos by true class and, within it, predicted class: classes x classes numbers; null
 *     if not asked for.
 */
public class Evaluation(
    public val count: Long,
    public val correct: Long,
    public val loss: Double,
    public val confusion: LongArray?,
) {
    /** This evaluation as a message in the header of an update. */
    internal fun toSums(label: String): EvaluationSums {
        val sums =
            EvaluationSums
                .newBuilder()
                .setLabel(label)
                .setCount(count)
                .setCorrect(correct)
                .setLoss(loss)
        confusion?.forEach(sums::addConfusion)
        return sums.build()
    }

    public companion object {
        /** The evaluations in the header of an update, by label, in the local plan's order. */
        internal fun of(header: UpdateHeader): Map<String, Evaluation> =
            header.evaluationsList.associate { sums ->
                val confusion = sums.confusionList.toLongArray().takeIf { it.isNotEmpty() }
                sums.label to Evaluation(sums.count, sums.correct, sums.loss, confusion)
            }

        /**
         * The sums over these rows; all 0 without rows.
         *
         * @param logits float32 [n, classes], row-major.
         * @param labels int64 [n], each in 0 until [classes].
         */
        public fun of(
            logits: FloatArray,
            labels: LongArray,
            classes: Int,
            withConfusion: Boolean,
        ): Evaluation {
            require(classes > 0 && logits.size == labels.size * classes) {
                "${logits.size} logits of ${labels.size} rows and $classes classes"
            }
            require(labels.all { it in 0 until classes }) { "a label is not in 0 until $classes" }
            val confusion = LongArray(if (withConfusion) classes * classes else 0)
            var correct = 0L
            var loss = 0.0
            for ((row, label) in labels.withIndex()) {
                val first = row * classes
                val predicted = predicted(logits, row, classes)
                val greatest = logits[first + predicted].toDouble()
                var sum = 0.0
                for (i in 0 until classes) sum += exp(logits[first + i] - greatest)
                loss += ln(sum) - (logits[first + label.toInt()] - greatest)
                if (predicted.toLong() == label) correct++
                if (withConfusion) confusion[label.toInt() * classes + predicted]++
            }
            return Evaluation(labels.size.toLong(), correct, loss, confusion.takeIf { withConfusion })
        }

        /** The class with the greatest logit in a row; among equal logits the first. */
        internal fun predicted(
            logits: FloatArray,
            row: Int,
            classes: Int,
        ): Int {
            val first = row * classes
            var predicted = 0
            for (i in 1 until classes) {
                if (logits[first + i] > logits[first + predicted]) predicted = i
            }
            return predicted
        }
    }
}
