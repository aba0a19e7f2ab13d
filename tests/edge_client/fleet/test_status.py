import os
import signal
from dataclasses import replace
from io import StringIO

from rich.console import Console

from fedlens_edge_client.events import Event, RoundFailed, RoundRefused, RoundReported, RoundStarted, Trained
from fedlens_edge_client.fleet.config import FleetConfig
from fedlens_edge_client.fleet.messages import EVALUATOR, ClientEnded, Happened
from fedlens_edge_client.fleet.progress import FleetProgress
from fedlens_edge_client.fleet.session import Interrupts, introduce
from fedlens_edge_client.fleet.status import FleetStatus


def reported(round_number: int) -> RoundReported:
    return RoundReported(1, round_number, photo_count=10, upload_bytes=500, start=None, end=None)


def heard(*said: tuple[int, Event]) -> FleetStatus:
    status = FleetStatus()
    for index, event in said:
        status.hear(Happened(0, index, event))
    return status


def test_a_round_counts_who_started_who_reported_and_their_losses() -> None:
    status = heard(
        (0, RoundStarted(1, 1, 10, 2)),
        (1, RoundStarted(1, 1, 10, 2)),
        (0, Trained(1, 1, 5, 5, 2.0)),
        (1, Trained(1, 1, 5, 5, 1.0)),
        (0, reported(1)),
    )

    newest = status.rounds[(1, 1)]
    assert (len(newest.started), len(newest.reported), newest.mean_loss) == (2, 1, 1.5)
    assert (status.reports, status.bytes_uploaded) == (1, 500)


def test_an_evaluator_is_no_member_of_a_round() -> None:
    status = heard((EVALUATOR, RoundStarted(1, 1, 0, 50)), (EVALUATOR, reported(1)))

    assert status.rounds == {}
    assert (status.reports, status.evaluations) == (0, 1)


def test_trouble_is_told_in_words() -> None:
    status = heard(
        (3, RoundRefused(1, 2, "round-closed", "the round has closed")),
        (4, RoundFailed(1, 2, "no_photos", "there is no labelled train photo")),
    )

    assert status.trouble == [
        "round 2, client 3: round-closed: the round has closed",
        "round 2, client 4: no_photos: there is no labelled train photo",
    ]


def test_clients_are_called_by_the_names_that_the_fleet_has_for_them() -> None:
    status = FleetStatus(name=lambda index: f"client {index} (anna)")

    status.hear(Happened(0, 3, RoundStarted(1, 2, 10, 2)))
    status.hear(Happened(0, 3, RoundFailed(1, 2, "no_photos", "there is none")))

    assert status.doing == {0: "client 3 (anna): round 2, 10 photos"}
    assert status.trouble == ["round 2, client 3 (anna): no_photos: there is none"]


def test_a_fleet_tells_what_is_left_out_of_its_photos_and_what_is_odd(config: FleetConfig) -> None:
    pool = replace(config.pool, skipped={"files [x]": ("a/1.png",)}, notes=("only client '[anna]' has photos of a",))
    console = Console(file=StringIO(), width=200)

    introduce(replace(config, pool=pool), console)

    assert isinstance(console.file, StringIO)
    assert console.file.getvalue().splitlines() == [
        "5 clients with 0 train photos of 2 classes (camera-iid, per class 1), 2 worker processes",
        "left out 1 files [x]: a/1.png",
        "only client '[anna]' has photos of a",
    ]


def test_an_evaluation_that_comes_after_the_next_model_is_no_trouble() -> None:
    status = heard((EVALUATOR, RoundRefused(1, 2, "round-closed", "another round is evaluated by now")))

    assert status.trouble == []


def test_a_client_that_failed_is_named() -> None:
    status = FleetStatus()
    status.hear(ClientEnded(0, 2, "the server refuses (forbidden): revoked"))
    status.hear(ClientEnded(0, 3, None))

    assert status.failures == {2: "the server refuses (forbidden): revoked"}
    assert status.ended == 2


def test_without_a_terminal_each_round_is_one_line() -> None:
    out = StringIO()
    status = FleetStatus()
    with FleetProgress(Console(file=out, width=100), workers=1) as progress:
        for event in (RoundStarted(1, 1, 9, 1), Trained(1, 1, 3, 3, 0.25), reported(1), RoundStarted(1, 2, 9, 1)):
            message = Happened(0, 0, event)
            status.hear(message)
            progress.show(message, status)

    assert out.getvalue().splitlines() == [
        "round   1: 1 of 1 clients reported, mean loss 0.250",
        "round   2: 0 of 1 clients reported",
    ]


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
