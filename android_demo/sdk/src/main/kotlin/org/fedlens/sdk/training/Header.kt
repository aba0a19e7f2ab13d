package org.fedlens.sdk.training

import com.google.protobuf.ByteString
import org.fedlens.proto.v1.Assignment
import org.fedlens.proto.v1.ClientStatistic
import org.fedlens.proto.v1.Manifest
import org.fedlens.proto.v1.UpdateHeader
import org.fedlens.sdk.Wire
import org.fedlens.sdk.store.NoisyAnswers
import org.fedlens.sdk.store.StoredBlob

/** The header of an update: those results of local training that the assignment asks for. */
internal object Header {
    /** Compose the header; a noisy answer in it is on the disk when this returns. */
    fun compose(
        assignment: Assignment,
        manifest: Manifest,
        result: TrainingResult,
        upload: StoredBlob?,
        noisyAnswers: NoisyAnswers,
    ): UpdateHeader {
        val header =
            UpdateHeader
                .newBuilder()
                .setProtocol(Wire.PROTOCOL)
                .setPhase(assignment.phase)
                .setBundle(assignment.bundle)
                .setNumExamples(result.numExamples.toLong())
        for ((moment, found) in result.evaluations.toSortedMap()) header.addEvaluations(found.toSums(moment))
        for (statistic in assignment.localPlan.statisticsList) {
            when (statistic.kindCase) {
                ClientStatistic.KindCase.CLASS_COUNTS -> result.classCounts.forEach(header::addClassCounts)
                ClientStatistic.KindCase.LABEL_DISTRIBUTION ->
                    noisyAnswers
                        .answer(manifest.classNamesList, result.classCounts, statistic.labelDistribution.epsilon)
                        .forEach(header::addLabelDistribution)
                else -> Unit
            }
        }
        if (upload != null) header.setBlobSha256(ByteString.copyFrom(upload.sha256)).setBlobSize(upload.size)
        return header.build()
    }
}
