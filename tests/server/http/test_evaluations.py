"""An evaluator's results: one for a committed round, repeated as often as it likes."""

from fedlens_proto.v1 import assignment_pb2, update_pb2
from fedlens_proto.wire import LENGTH, frame_update
from tests.server.http.running import EVALUATOR_TOKEN, Client, Server, round_path


async def evaluation(server: Server) -> tuple[Client, assignment_pb2.Assignment, str]:
    """An evaluator, what it is to do once the first round has committed, and where it sends the result."""
    trainer, training = await server.member()
    evaluator = await server.client(2, EVALUATOR_TOKEN)
    await trainer.upload(training)
    assignment = await evaluator.assignment()
    return evaluator, assignment, f"{round_path(assignment)}/evaluation"


def measured(assignment: assignment_pb2.Assignment, correct: int) -> bytes:
    (asked,) = assignment.local_plan.evaluations
    sums = update_pb2.EvaluationSums(label=asked.label, count=50, correct=correct, loss=12.5)
    header = update_pb2.UpdateHeader(protocol=1, bundle=assignment.bundle, phase=assignment.phase, evaluations=[sums])
    return frame_update(header)


async def test_an_evaluation_sent_twice_gets_the_same_receipt_and_is_shown_once(server: Server) -> None:
    evaluator, assignment, path = await evaluation(server)

    first, again = [await evaluator.send("PUT", path, measured(assignment, 40)) for _ in range(2)]

    sums = getattr((await server.show()).rounds[0], "global")
    assert assignment.answer == assignment_pb2.ANSWER_EVALUATION
    assert (first.status, first.body) == (200, again.body)
    assert [(entry.count, entry.correct, entry.loss) for entry in sums] == [(50, 40, 12.5)]


async def test_an_evaluation_that_differs_cannot_be_or_has_a_wrong_length_is_refused(server: Server) -> None:
    evaluator, assignment, path = await evaluation(server)
    body = measured(assignment, 40)
    lying = [LENGTH.pack(len(body) - LENGTH.size + extra) + body[LENGTH.size :] for extra in (-1, 1)]

    sent = (measured(assignment, 51), *lying, body, measured(assignment, 41))
    answers = [await evaluator.send("PUT", path, each) for each in sent]

    malformed = (400, "malformed")
    expected = [(422, "update-invalid"), malformed, malformed, (200, ""), (409, "update-differs")]
    assert [answer.outcome for answer in answers] == expected
