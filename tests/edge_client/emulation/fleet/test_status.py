import os
import signal
from dataclasses import replace
from io import StringIO

from rich.console import Console

from fedlens_edge_client.client.events import (
    Embedded,
    Enrolled,
    Event,
    Retrying,
    RoundFailed,
    RoundRefused,
    RoundReported,
    RoundStarted,
    Trained,
    Waiting,
)
from fedlens_edge_client.emulation.faults import FaultEntry, FaultKind, FaultPlan
from fedlens_edge_client.emulation.fleet.config import FleetConfig
from fedlens_edge_client.emulation.fleet.messages import EVALUATOR, ClientEnded, Happened
from fedlens_edge_client.emulation.fleet.progress import FleetProgress
from fedlens_edge_client.emulation.fleet.session import Interrupts, introduce, summarise
from fedlens_edge_client.emulation.fleet.status import FleetStatus


def reported(round_number: int) -> RoundReported:
    return RoundReported(1, round_number, num_examples=10, upload_bytes=500, evaluations={})


def heard(*said: tuple[int, Event]) -> FleetStatus:
    status = FleetStatus()
    for index, event in said:
        status.count(Happened(0, index, event))
    return status


def printed(*said: tuple[float, int, Event] | float) -> list[str]:
    """The lines of a fleet's progress: at some second a client tells an event, or there is only a look."""
    out, now, status = StringIO(), [0.0], FleetStatus()
    with FleetProgress(Console(file=out, width=100), workers=2, now=lambda: now[0]) as progress:
        for step in said:
            if isinstance(step, tuple):
                now[0], index, event = step
                message = Happened(0, index, event)
                status.count(message)
                progress.show(message, status)
            else:
                now[0] = step
                progress.look()
    return out.getvalue().splitlines()


def test_why_clients_fail_is_told_at_once_and_once_for_each_reason() -> None:
    out, status = StringIO(), FleetStatus()
    with FleetProgress(Console(file=out, width=100), workers=1) as progress:
        for index, reason in enumerate(["banned", "banned", None, "no [room]"]):
            message = ClientEnded(0, index, reason)
            status.count(message)
            progress.show(message, status)
        told = out.getvalue().splitlines()

    assert told == ["a client failed: banned", "a client failed: no [room]"]


def test_a_round_counts_who_started_who_reported_and_their_losses() -> None:
    status = heard(
        (0, RoundStarted(1, 1, 10, 2)),
        (1, RoundStarted(1, 1, 10, 2)),
        (0, Trained(1, 1, 5, 5, loss=9.0, mean_loss=2.0)),
        (1, Trained(1, 1, 5, 5, loss=9.0, mean_loss=1.0)),
        (0, reported(1)),
    )

    newest = status.rounds[(1, 1)]
    assert (len(newest.started), len(newest.reported), newest.mean_loss) == (2, 1, 1.5)
    assert (status.reports, status.bytes_uploaded) == (1, 500)


def test_an_update_out_of_an_earlier_runs_outbox_counts_among_those_that_a_round_waits_for() -> None:
    lines = printed((0.0, 0, reported(1)), (0.0, 1, RoundStarted(1, 1, 10, 2)), (0.0, 1, reported(1)))

    assert lines == ["round   1: 2 of 2 clients reported"]


def test_a_fleet_tells_what_is_left_out_of_its_photos_and_what_is_odd(config: FleetConfig) -> None:
    pool = replace(config.pool, skipped={"files [x]": ("a/1.png",)}, notes=("only client '[anna]' has photos of a",))
    console = Console(file=StringIO(), width=200)

    introduce(replace(config, pool=pool), console)

    assert isinstance(console.file, StringIO)
    assert console.file.getvalue().splitlines() == [
        "5 clients with 0 train photos of 2 classes (camera-iid, per class 1), 2 workers",
        "left out 1 files [x]: a/1.png",
        "only client '[anna]' has photos of a",
    ]


def test_clients_that_a_fault_plan_names_and_a_fleet_lacks_are_told(config: FleetConfig) -> None:
    faults = [FaultEntry(client=client, round=1, kind=FaultKind.NAN) for client in (6, 0, 4, 5)]
    console = Console(file=StringIO(), width=200)

    introduce(replace(config, plan=FaultPlan(fault=tuple(faults))), console)

    assert isinstance(console.file, StringIO)
    assert console.file.getvalue().splitlines()[1:] == [
        "the fault plan names clients that are not here: client 5, client 6"
    ]


def test_a_client_that_failed_is_named() -> None:
    status = FleetStatus()
    status.count(ClientEnded(0, 2, "the server refuses (forbidden): revoked"))
    status.count(ClientEnded(0, 3, None))

    assert status.failures == {2: "the server refuses (forbidden): revoked"}


def test_clients_wait_in_vain_if_one_has_failed_and_the_task_has_not_started() -> None:
    status = heard((0, Waiting("population", 2000)), (1, Waiting("next_round", 2000)))
    all_run = status.waits_in_vain
    status.count(ClientEnded(0, 2, "banned"))
    one_failed = status.waits_in_vain
    status.count(Happened(0, 0, Waiting("next_round", 2000)))
    task_runs = status.waits_in_vain

    assert (all_run, one_failed, task_runs) == (False, True, False)


def test_without_a_terminal_each_round_is_one_line() -> None:
    events = (RoundStarted(1, 1, 9, 1), Trained(1, 1, 3, 3, 0.1, 0.25), reported(1), RoundStarted(1, 2, 9, 1))

    assert printed(*((0.0, 0, event) for event in events)) == [
        "round   1: 1 of 1 client reported, mean loss 0.250",
        "round   2: 0 of 1 client reported",
    ]


def test_without_a_terminal_a_fleet_that_works_for_minutes_tells_how_far_it_is() -> None:
    lines = printed(
        *((0.0, 0, Embedded(3, 9)), 59.0, 60.0, 119.0, (119.0, 0, RoundStarted(1, 1, 9, 1)), 120.0),
        *((121.0, 0, Trained(1, 1, 3, 3, 0.1, 0.25)), 180.0),
    )

    assert lines == [
        "client 0: 3 of 9 photos read",
        "round   1: 0 of 1 client reported so far",
        "round   1: 0 of 1 client reported, mean loss 0.250 so far",
        "round   1: 0 of 1 client reported, mean loss 0.250",
    ]


def test_the_summary_of_a_fleet_counts_the_clients_that_failed(config: FleetConfig) -> None:
    status, console = FleetStatus(), Console(file=StringIO(), width=200)
    for index in range(5):
        status.count(ClientEnded(0, index, "banned"))

    summarise(status, config, console)

    assert isinstance(console.file, StringIO)
    assert "updates reported  0 by 5 clients (5 failed), 0 bytes" in console.file.getvalue()


def test_a_mean_loss_does_not_depend_on_who_reports_first() -> None:
    # In floating point 0.1 + 0.2 + 0.3 and 0.3 + 0.2 + 0.1 differ in the last place.
    said: list[tuple[int, Event]] = [(i, Trained(1, 1, 1, 1, 0.0, loss)) for i, loss in enumerate((0.1, 0.2, 0.3))]

    losses = [heard(*order).rounds[(1, 1)].mean_loss for order in (said, said[::-1])]

    assert losses[0] == losses[1]


def test_a_round_is_told_when_all_that_started_it_have_reported_even_after_the_next_has_begun() -> None:
    lines = printed(
        (0.0, 0, RoundStarted(1, 1, 9, 1)),
        (0.0, 1, RoundStarted(1, 1, 9, 1)),
        (0.0, 0, Trained(1, 1, 3, 3, 0.1, 0.25)),
        (0.0, 0, reported(1)),
        (0.0, 0, RoundStarted(1, 2, 9, 1)),
        (0.0, 1, Trained(1, 1, 3, 3, 0.1, 0.75)),
        (0.0, 1, reported(1)),
    )

    assert lines[0] == "round   1: 2 of 2 clients reported, mean loss 0.500"


def test_a_fleet_of_which_nobody_works_says_why_and_again_every_half_minute() -> None:
    waits = Waiting("population", 9)
    lines = printed(
        (0.0, 0, waits), (0.0, 1, Enrolled(bytes(32), "trainer")), 0.0, 5.0, (5.0, 1, waits), 6.0, 6.5, 7.0, 36.9, 37.0
    )

    # The second client waits from 6 s on, as a look finds, which is told when it has lasted a second, at 7 s.
    line = "clients: waiting: the task starts when enough clients have enrolled"
    assert lines == [line, f"{line} (for 30 s)"]


def test_a_fleet_whose_server_is_down_says_so_as_long_as_requests_fail() -> None:
    fails = Retrying("connection failed", 2.0, 1)

    line = "clients: connection failed; trying again"
    assert printed(*((at, 0, fails) for at in (0.0, 2.0, 20.0, 33.0)), 70.0) == [line, f"{line} (for 31 s)"]


def test_trouble_is_told_in_words_with_the_names_that_the_fleet_has_for_clients() -> None:
    status = FleetStatus(name=lambda index: f"client {index} (anna)")

    status.count(Happened(0, 3, RoundStarted(1, 2, 10, 2)))
    status.count(Happened(0, 3, RoundFailed(1, 2, "no_photos", "there is no labelled train photo")))
    status.count(Happened(0, 4, RoundRefused(1, 2, "update-invalid", "a blob is not what the header says")))

    assert status.activity == {0: "client 3 (anna): round 2, 10 photos"}
    assert status.trouble == [
        "round 2, client 3 (anna): no_photos: there is no labelled train photo",
        "round 2, client 4 (anna): update-invalid: a blob is not what the header says",
    ]


def test_a_fleet_that_runs_for_long_keeps_no_more_of_its_rounds_than_it_may_still_show(config: FleetConfig) -> None:
    out, status = StringIO(), FleetStatus()
    with FleetProgress(Console(file=out, width=100), workers=2) as progress:
        for number in range(1, 101):
            for event in (RoundStarted(1, number, 9, 1), reported(number), RoundFailed(1, number, "policy", "no")):
                status.count(message := Happened(0, 0, event))
                progress.show(message, status)
        # What comes long after its round makes no newer one of it.
        status.count(message := Happened(0, 1, reported(1)))
        progress.show(message, status)
    shown = Console(file=StringIO(), width=200)
    summarise(status, config, shown)

    assert (list(status.rounds), status.reports) == ([(1, 98), (1, 99), (1, 100)], 101)
    assert (len(status.trouble), status.troubles) == (10, 100)
    assert out.getvalue().splitlines() == [f"round {n:>3}: 1 of 1 client reported" for n in range(1, 101)]
    assert isinstance(shown.file, StringIO)
    assert "and 90 more" in shown.file.getvalue()
    assert "rounds seen       100" in shown.file.getvalue()


def test_an_update_that_comes_after_the_end_of_its_round_is_late_and_no_trouble() -> None:
    status = heard((4, RoundStarted(1, 2, 10, 2)), (4, RoundRefused(1, 2, "round-closed", "the round has closed")))

    assert (status.late, status.trouble) == (1, [])


def test_an_evaluator_is_no_member_of_a_round_and_what_comes_after_the_next_model_is_no_trouble() -> None:
    status = heard(
        (EVALUATOR, RoundStarted(1, 1, 0, 50)),
        (EVALUATOR, reported(1)),
        (EVALUATOR, RoundRefused(1, 2, "round-closed", "another round is evaluated by now")),
    )

    assert status.rounds == {}
    assert (status.reports, status.evaluations, status.trouble) == (0, 1, [])


def test_a_terminal_shows_the_newest_round_and_every_worker() -> None:
    out = StringIO()
    status = heard((0, RoundStarted(1, 1, 9, 1)))
    console = Console(file=out, width=100, force_terminal=True)
    progress = FleetProgress(console, workers=2)
    progress.show(Happened(0, 0, reported(1)), status)

    console.print(progress)

    assert "client 0: round 1, 9 photos" in out.getvalue()
    assert "starting" in out.getvalue()


def test_ctrl_c_is_noted_and_gives_status_130() -> None:
    with Interrupts() as interrupts:
        os.kill(os.getpid(), signal.SIGINT)

    assert interrupts.received == signal.SIGINT
    assert interrupts.exit_status == 130
