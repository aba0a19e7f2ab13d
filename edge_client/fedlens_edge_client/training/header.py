"""The header of an update: what a pass has found, as far as it was asked for."""

from fedlens_edge_client.storage.tensor_files import StoredBlob
from fedlens_edge_client.training.evaluation import Evaluation
from fedlens_edge_client.training.label_distribution import KeptAnswers
from fedlens_edge_client.training.local_training import PassResult
from fedlens_proto import wire
from fedlens_proto.v1 import assignment_pb2, manifest_pb2, update_pb2


def compose(
    assignment: assignment_pb2.Assignment,
    bundle: manifest_pb2.Manifest,
    result: PassResult,
    upload: StoredBlob | None,
    answers: KeptAnswers,
) -> update_pb2.UpdateHeader:
    """The header for the result of an assignment; a noisy answer in it is on the disk when this returns."""
    header = update_pb2.UpdateHeader(
        protocol=wire.PROTOCOL,
        phase=assignment.phase,
        bundle=assignment.bundle,
        num_examples=result.num_examples,
        evaluations=[_sums(moment, found) for moment, found in sorted(result.evaluations.items())],
    )
    for ask in assignment.local_plan.statistics:
        if ask.HasField("class_counts"):
            header.class_counts[:] = result.class_counts
        elif ask.HasField("label_distribution"):
            epsilon = ask.label_distribution.epsilon
            header.label_distribution[:] = answers.answer(bundle.class_names, result.class_counts, epsilon)
    if upload is not None:
        header.blob_sha256 = upload.sha256
        header.blob_size = upload.size
    return header


def _sums(moment: update_pb2.EvaluationMoment, found: Evaluation) -> update_pb2.EvaluationSums:
    return update_pb2.EvaluationSums(
        moment=moment, count=found.count, correct=found.correct, loss=found.loss, confusion=found.confusion
    )
