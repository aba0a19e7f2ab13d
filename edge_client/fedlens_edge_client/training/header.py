"""The header of an update: evaluations and client statistics as far as the local plan asks for them."""

from collections.abc import Mapping

from fedlens_edge_client.storage.tensor_files import EncodedTensors
from fedlens_edge_client.training.label_distribution import NoisyAnswers
from fedlens_edge_client.training.local_training import TrainingResult
from fedlens_proto import wire
from fedlens_proto.v1 import assignment_pb2, manifest_pb2, update_pb2


def compose(
    assignment: assignment_pb2.Assignment,
    bundle: manifest_pb2.Manifest,
    result: TrainingResult,
    uploads: Mapping[str, EncodedTensors],
    noisy_answers: NoisyAnswers,
) -> update_pb2.UpdateHeader:
    """Compose the header for an assignment's result; a noisy answer in it is on disk when this returns."""
    header = update_pb2.UpdateHeader(
        protocol=wire.PROTOCOL,
        phase=assignment.phase,
        bundle=assignment.bundle,
        num_examples=result.num_examples,
        evaluations=[
            update_pb2.EvaluationSums(label=label, **vars(found)) for label, found in result.evaluations.items()
        ],
        uploads=[
            update_pb2.UploadedBlob(name=name, sha256=upload.sha256, size=upload.size)
            for name, upload in uploads.items()
        ],
    )
    for statistic in assignment.local_plan.statistics:
        if statistic.HasField("class_counts"):
            header.class_counts[:] = result.class_counts
        elif statistic.HasField("label_distribution"):
            epsilon = statistic.label_distribution.epsilon
            header.label_distribution[:] = noisy_answers.answer(bundle.class_names, result.class_counts, epsilon)
    return header
