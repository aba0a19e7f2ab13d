"""Figures of rounds, as the dashboard shows them."""

from collections import OrderedDict

from fedlens_proto.v1 import update_pb2
from fedlens_server.engine import assignments
from fedlens_server.engine.operators.history import History
from tests.server.fakes import ALICE, BOB, Bench


class Dropping(OrderedDict[tuple[int, int], dict[str, float]]):
    """Figures of which another thread drops each one as soon as it was seen to be there."""

    def __contains__(self, key: object) -> bool:
        is_there = super().__contains__(key)
        if is_there:
            super().__delitem__(key)  # type: ignore[arg-type]
        return is_there


def test_the_round_under_way_is_shown_with_the_bytes_that_it_has_sent(bench: Bench) -> None:
    bench.start()
    assignment = bench.assignment(ALICE)

    assignments.count_sent(bench.federation, ALICE, assignment.bundle, 700)
    (under_way,) = History().rounds(bench.federation, bench.task, 10)
    bench.commit()
    following, ended = History().rounds(bench.federation, bench.task, 10)

    assert (under_way.bytes_sent, following.bytes_sent, ended.bytes_sent) == (700, 0, 700)


def test_figures_that_another_thread_drops_meanwhile_are_no_fault(bench: Bench) -> None:
    bench.start()
    for client, correct in ((ALICE, 1), (BOB, 3)):
        sums = [update_pb2.EvaluationSums(label=label, count=4, correct=correct) for label in ("start", "trained")]
        bench.report(client, evaluations=sums)
    bench.advance()
    history = History()
    history._personal = Dropping()

    first, again = [history.rounds(bench.federation, bench.task, 10)[1].personal for _ in range(2)]

    # Of 1/4 and 3/4
    assert first == again == {"start": 0.5, "trained": 0.5}
