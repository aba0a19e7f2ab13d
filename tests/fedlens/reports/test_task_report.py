"""Sums into what an operator reads."""

import pytest

from fedlens.reports import task_report
from fedlens_proto.v1 import admin_pb2 as pb
from fedlens_proto.v1 import update_pb2

REPORTED = pb.MEMBER_STATE_REPORTED
START, END = "start", "trained"


def sums(label: str, count: int, correct: int, loss: float = 0.0) -> update_pb2.EvaluationSums:
    return update_pb2.EvaluationSums(label=label, count=count, correct=correct, loss=loss)


def member(index: int, state: pb.MemberState, reason: str = "", **fields: object) -> pb.MemberResult:
    return pb.MemberResult(client_id=bytes([index] * 32), state=state, reason=reason, **fields)  # type: ignore[arg-type]


def sample() -> pb.RoundResult:
    result = pb.RoundResult(
        round=3,
        state=pb.ROUND_STATE_COMMITTED,
        members=[
            member(1, REPORTED, bytes_received=1000, evaluations=[sums(START, 10, 2), sums(END, 10, 8)]),
            member(2, REPORTED, bytes_received=500, evaluations=[sums(START, 30, 18), sums(END, 30, 30)]),
            member(3, pb.MEMBER_STATE_QUARANTINED, "tensor 'fc' holds a NaN"),
            member(4, pb.MEMBER_STATE_FAILED, "no-photos"),
            member(5, pb.MEMBER_STATE_PENDING),
        ],
        bytes_sent=4096,
    )
    getattr(result, "global").append(sums("global", 50, 40, 25.0))
    return result


def test_personal_accuracy_is_given_over_clients_and_pooled() -> None:
    # Clients: 2/10 = 0.2 and 18/30 = 0.6: mean 0.4, population deviation 0.2. Pooled: 20/40 = 0.5.
    before = task_report.round_values(sample())["personal"]["before"]

    assert before["mean_accuracy"] == pytest.approx(0.4)
    assert before["deviation"] == pytest.approx(0.2)
    assert before["pooled"]["accuracy"] == pytest.approx(0.5)
    assert before["clients"] == 2


def test_clients_without_test_photos_are_left_out_of_the_mean() -> None:
    assert task_report.personal_values([sums(END, 0, 0)]) is None
    assert task_report.personal_values([sums(END, 0, 0), sums(END, 2, 1)])["clients"] == 1  # type: ignore[index]


def test_a_round_counts_its_members_and_bytes() -> None:
    values = task_report.round_values(sample())

    assert values["counts"] == {"failed": 1, "pending": 1, "quarantined": 1, "reported": 2}
    assert (values["bytes_received"], values["bytes_sent"]) == (1500, 4096)
    assert values["global"]["accuracy"] == pytest.approx(0.8)
    assert values["global"]["mean_loss"] == pytest.approx(0.5)


def test_members_that_are_listed_no_more_are_counted_with_the_others() -> None:
    result = sample()
    result.unlisted.add(state=REPORTED, members=3, bytes_received=70)
    result.unlisted.add(state=pb.MEMBER_STATE_LATE, members=1)

    values = task_report.round_values(result)

    assert values["counts"] == {"failed": 1, "late": 1, "pending": 1, "quarantined": 1, "reported": 2 + 3}
    assert values["bytes_received"] == 1500 + 70


def test_a_round_counts_who_was_left_out_or_late_and_lines_below_say_why() -> None:
    result = sample()
    result.members[3].reason += " \x1b[2J"
    result.unlisted.add(state=pb.MEMBER_STATE_LATE, members=1)
    values = task_report.round_values(result)

    row = dict(zip(task_report.ROUND_COLUMNS, task_report.round_row(values), strict=True))

    # After: 8/10 and 30/30: mean 0.9, deviation 0.1.

    assert (row["reported"], row["late"], row["left out"]) == ("2 of 6", "1", "2")
    assert (row["before"], row["±"], row["global"]) == ("40.0%", "10.0%", "80.0%")
    assert task_report.round_lines(values) == [
        "round 3: 030303030303 quarantined: tensor 'fc' holds a NaN",
        "round 3: 040404040404 failed: no-photos \N{REPLACEMENT CHARACTER}[2J",
    ]


def test_a_round_in_which_nothing_was_measured_has_no_ratios() -> None:
    row = task_report.round_row(task_report.round_values(pb.RoundResult(round=1, state=pb.ROUND_STATE_OPEN)))

    assert row[5:10] == ["-"] * 5


def test_a_round_that_is_overdue_says_what_it_waits_for() -> None:
    result = pb.RoundResult(round=1, state=pb.ROUND_STATE_OPEN, overdue=True)
    lines = task_report.round_lines(task_report.round_values(result))
    assert lines == ["round 1: open: overdue, waits for more updates"]


def test_precision_and_recall_come_from_what_all_members_sent_together() -> None:
    # Of four cats three are seen as cats and one as a dog; both dogs are seen as cats; nothing is an emu.
    # Precision: cats 3/5, dogs 0/1. Recall: 3/4 and 0/2. No photo is an emu: left out of both means.
    result = sample()
    end = sums(END, 6, 3)
    end.confusion[:] = [3, 1, 0, 2, 0, 0, 0, 0, 0]
    result.personal.extend([sums(START, 6, 0), end])
    after = task_report.round_values(result)["personal"]["after"]["pooled"]

    assert after["confusion"] == [[3, 1, 0], [2, 0, 0], [0, 0, 0]]
    assert (after["count"], after["accuracy"]) == (6, 0.5)
    assert after["macro_precision"] == pytest.approx((3 / 5 + 0) / 2)
    assert after["macro_recall"] == pytest.approx((3 / 4 + 0) / 2)
    assert "confusion" not in task_report.round_values(result)["personal"]["before"]["pooled"]


@pytest.mark.parametrize("label", ["fine_tuned", "nearest"])
def test_a_round_tells_of_every_evaluation_by_its_label(label: str) -> None:
    result = sample()
    result.members[0].evaluations.append(sums(label, 10, 9))
    values = task_report.round_values(result)

    assert values["personal"][label]["mean_accuracy"] == pytest.approx(0.9)
    assert values["members"][0]["evaluations"][label]["correct"] == 9
    assert task_report.figures(values)[f"personal_{label}_accuracy"] == pytest.approx(0.9)
    assert len(task_report.round_row(values)) == len(task_report.ROUND_COLUMNS)
