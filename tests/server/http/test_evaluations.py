"""An evaluator's results: one for a committed round, repeated as often as it likes."""

from typing import Any

import pytest

from fedlens_proto.v1 import assignment_pb2, update_pb2
from fedlens_proto.wire import LENGTH, frame_update
from tests.server.bundles import tiny_bundle
from tests.server.http.running import EVALUATOR_TOKEN, Client, Server, round_path, trained, update


async def evaluation(server: Server, **settings: Any) -> tuple[Client, Client, assignment_pb2.Assignment]:
    """A trainer, an evaluator, and what the latter is to do once the first round has committed."""
    await server.create(tiny_bundle(), population=1, **settings)
    trainer, evaluator = await server.client(1), await server.client(2, EVALUATOR_TOKEN)
    training = await trainer.assignment()
    await trainer.upload(training, update(training, trained()))
    return trainer, evaluator, await evaluator.assignment()


def measured(assignment: assignment_pb2.Assignment, correct: int) -> bytes:
    moment = update_pb2.EVALUATION_MOMENT_START
    if assignment.local_plan.evaluation.at_end:
        moment = update_pb2.EVALUATION_MOMENT_END
    sums = update_pb2.EvaluationSums(moment=moment, count=50, correct=correct, loss=12.5)
    header = update_pb2.UpdateHeader(protocol=1, bundle=assignment.bundle, phase=assignment.phase, evaluations=[sums])
    return frame_update(header)


async def test_an_evaluation_sent_twice_gets_the_same_receipt_and_is_shown_once(server: Server) -> None:
    _, evaluator, assignment = await evaluation(server)
    path = f"{round_path(assignment)}/evaluation"

    first, again = [await evaluator.send("PUT", path, measured(assignment, 40)) for _ in range(2)]

    sums = getattr((await server.show()).rounds[0], "global")
    assert assignment.answer == assignment_pb2.ANSWER_EVALUATION
    assert (first.status, first.body) == (200, again.body)
    assert [(entry.count, entry.correct, entry.loss) for entry in sums] == [(50, 40, 12.5)]


async def test_another_evaluation_of_the_same_round_is_409(server: Server) -> None:
    _, evaluator, assignment = await evaluation(server)
    path = f"{round_path(assignment)}/evaluation"
    await evaluator.send("PUT", path, measured(assignment, 40))

    answer = await evaluator.send("PUT", path, measured(assignment, 41))

    assert answer.outcome == (409, "update-differs")


async def test_sums_that_cannot_be_are_422(server: Server) -> None:
    _, evaluator, assignment = await evaluation(server)

    answer = await evaluator.send("PUT", f"{round_path(assignment)}/evaluation", measured(assignment, 51))

    assert answer.outcome == (422, "update-invalid")


@pytest.mark.parametrize("extra", [-1, 1])
async def test_a_length_that_lies_is_400(server: Server, extra: int) -> None:
    _, evaluator, assignment = await evaluation(server)
    body = measured(assignment, 40)
    lying = LENGTH.pack(len(body) - LENGTH.size + extra) + body[LENGTH.size :]

    answer = await evaluator.send("PUT", f"{round_path(assignment)}/evaluation", lying)

    assert answer.outcome == (400, "malformed")
