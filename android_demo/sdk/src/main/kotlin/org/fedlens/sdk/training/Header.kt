package org.fedlens.sdk.training

import com.google.protobuf.ByteString
import org.fedlens.proto.v1.Assignment
import org.fedlens.proto.v1.Manifest
import org.fedlens.proto.v1.Statistic
import org.fedlens.proto.v1.UpdateHeader
import org.fedlens.proto.v1.UploadedBlob
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
        uploads: Map<String, StoredBlob>,
        noisyAnswers: NoisyAnswers,
    ): UpdateHeader {
        val header =
            UpdateHeader
                .newBuilder()
                .setProtocol(Wire.PROTOCOL)
                .setPhase(assignment.phase)
                .setBundle(assignment.bundle)
                .setNumExamples(result.numExamples.toLong())
        for ((label, found) in result.evaluations) header.addEvaluations(found.toSums(label))
        for (statistic in assignment.localPlan.statisticsList) {
            when (statistic.kindCase) {
                Statistic.KindCase.CLASS_COUNTS -> result.classCounts.forEach(header::addClassCounts)
                Statistic.KindCase.LABEL_DISTRIBUTION ->
                    noisyAnswers
                        .answer(manifest.classNamesList, result.classCounts, statistic.labelDistribution.epsilon)
                        .forEach(header::addLabelDistribution)
                else -> Unit
            }
        }
        for ((name, upload) in uploads) {
            val digest = ByteString.copyFrom(upload.sha256)
            header.addUploads(UploadedBlob.newBuilder().setName(name).setSha256(digest).setSize(upload.size))
        }
        return header.build()
    }
}
