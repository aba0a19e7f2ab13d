import os
import signal
import subprocess
import sys
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner, Result

from fedlens.cli import app
from fedlens.reports.client_report import ClientReport
from fedlens_edge_client.client import client as client_module
from fedlens_edge_client.client.events import Retrying, Waiting
from fedlens_edge_client.engines.choice import EngineName
from fedlens_edge_client.training import requirements
from fedlens_proto.manifest import Bundle
from fedlens_proto.v1 import manifest_pb2 as pb
from tests.edge_client.fakes import TOKEN, FakeServer, answering, fedavg_plan, refusal
from tests.edge_client.linear import LinearEngine, make_bundle
from tests.edge_client.photo_folders import add_photos, make_album
from tests.fedlens.threaded_server import running


@pytest.fixture
def bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bundle:
    monkeypatch.setattr(client_module, "make_engine", lambda name, bundle, tried: LinearEngine(bundle))
    return make_bundle(tmp_path / "bundle")


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return make_album(tmp_path / "photos")


def fedlens(server: str, folder: Path, *more: str, token: str | None = TOKEN) -> Result:
    arguments = ["client", "--server", server, "--photos", str(folder / "photos"), "--state", str(folder / "state")]
    environment = {"FEDLENS_ENROLMENT_TOKEN": token, "COLUMNS": "200"}
    return CliRunner().invoke(app, [*arguments, *more], env=environment)


@pytest.mark.usefixtures("photos")
def test_a_client_takes_part_until_the_end_and_says_what_happens(bundle: Bundle, tmp_path: Path) -> None:
    with running(FakeServer(bundle, fedavg_plan(20), rounds=2)) as server:
        result = fedlens(server.url, tmp_path)

    assert result.exit_code == 0, result.output
    assert "enrolled as trainer" in result.stdout
    assert "task 7, round 1: 16 photos to train on, 4 to test" in result.stdout
    # Zero weights call everything a cat, which half of the four test photos are.
    assert "task 7, round 1: reported, 265 bytes sent; right on 4 test photos: 50.0% -> 100.0%" in result.stdout
    assert "every task has ended" in result.stdout
    assert list(server.updates) == [1, 2]


@pytest.mark.usefixtures("photos")
def test_once_ends_after_one_round(bundle: Bundle, tmp_path: Path) -> None:
    with running(FakeServer(bundle, fedavg_plan(), rounds=2)) as server:
        result = fedlens(server.url, tmp_path, "--once", "--task", "7")

    assert result.exit_code == 0
    assert list(server.updates) == [1]
    assert server.check_ins[0].task == 7


@pytest.mark.usefixtures("photos")
def test_a_token_can_come_from_a_file_and_is_needed_only_the_first_time(bundle: Bundle, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    with running(FakeServer(bundle, fedavg_plan(), rounds=2)) as server:
        first = fedlens(server.url, tmp_path, "--once", "--token-file", str(tmp_path / "token"), token=None)
        second = fedlens(server.url, tmp_path, "--once", token=None)

    assert (first.exit_code, second.exit_code) == (0, 0)
    assert server.calls["clients"] == 1


@pytest.mark.usefixtures("photos")
def test_a_wrong_token_ends_with_the_reason(bundle: Bundle, tmp_path: Path) -> None:
    with running(FakeServer(bundle, fedavg_plan())) as server:
        result = fedlens(server.url, tmp_path, token="wrong")

    assert result.exit_code == 1
    assert result.stderr == "fedlens: the server refuses (forbidden): this enrolment token is not known\n"


@pytest.mark.usefixtures("photos")
@pytest.mark.parametrize(("content", "named"), [(None, "cannot be read as an enrolment token"), ("\n", "is empty")])
def test_a_token_file_that_is_no_token_is_named(tmp_path: Path, content: str | None, named: str) -> None:
    path = tmp_path / "token"
    _ = content is None or path.write_text(content)
    result = fedlens("https://127.0.0.1:1", tmp_path, "--token-file", str(path))

    assert result.exit_code == 1
    assert named in result.stderr


@pytest.mark.usefixtures("photos")
def test_without_token_the_command_says_that_one_is_needed(bundle: Bundle, tmp_path: Path) -> None:
    with running(FakeServer(bundle, fedavg_plan())) as server:
        result = fedlens(server.url, tmp_path, token=None)

    assert result.exit_code == 1
    assert "give an enrolment token" in result.stderr


def test_an_empty_photo_folder_is_named_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "photos" / "cat").mkdir(parents=True)
    result = fedlens("https://127.0.0.1:1", tmp_path)

    assert result.exit_code == 1
    assert f"{tmp_path / 'photos'} holds no photo: put photos" in result.stderr


def test_a_photo_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    result = fedlens("https://127.0.0.1:1", tmp_path)

    assert result.exit_code == 1
    assert "is no folder" in result.stderr


def test_photos_that_cannot_be_used_are_counted_and_named_once(bundle: Bundle, photos: Path, tmp_path: Path) -> None:
    for index in range(7):
        (photos / "cat" / f"phone-{index}.heic").write_bytes(b"x")
    (photos / "dog" / "[broken].jpg").write_bytes(b"x")
    add_photos(photos, "horse", 1)
    with running(FakeServer(bundle, fedavg_plan(), rounds=2)) as server:
        result = fedlens(server.url, tmp_path)

    assert result.exit_code == 0
    shown = ", ".join(f"cat/phone-{index}.heic" for index in range(5))
    assert result.stdout.count(f"{shown} and 2 more") == 1
    assert "(files that cannot be read): dog/[broken].jpg" in result.stdout
    assert "(class 'horse' is not in the model): horse/0-000.png" in result.stdout


@pytest.mark.usefixtures("photos")
def test_trouble_on_the_way_is_told_while_the_command_goes_on(bundle: Bundle, tmp_path: Path) -> None:
    server = FakeServer(bundle, fedavg_plan())
    server.troubles.append(("clients", answering(lambda: refusal(503, "unavailable", "starting", 3, 1))))
    with running(server):
        result = fedlens(server.url, tmp_path)

    assert result.exit_code == 0
    assert "unavailable: starting; trying again" in result.stdout


def test_a_client_says_why_it_waits_at_once_and_every_half_minute_again(tmp_path: Path) -> None:
    shown, now = StringIO(), [0.0]
    with ClientReport(Console(file=shown, width=300), tmp_path, now=lambda: now[0]) as report:
        report.happened(Waiting("population", 1000))
        for now[0] in (25.0, 29.9, 30.0, 31.0, 60.0):
            report.look()

    line = "waiting: the task starts when enough clients have enrolled"
    assert shown.getvalue().splitlines() == [line, f"{line} (for 30 s)", f"{line} (for 60 s)"]


def test_a_request_that_fails_again_and_again_is_told_every_half_minute(tmp_path: Path) -> None:
    shown, now = StringIO(), [0.0]
    with ClientReport(Console(file=shown, width=300), tmp_path, now=lambda: now[0]) as report:
        for now[0] in (0.0, 0.5, 12.0, 40.0):
            report.happened(Retrying("connection failed", 0.5, 1))
        # The next one may have succeeded: the server holds a poll for a while before it answers.
        now[0] = 80.0
        report.look()
        report.happened(Waiting("next_round", 1000))

    first, second, third = shown.getvalue().splitlines()
    assert (first, second) == ("connection failed; trying again", "connection failed; trying again (for 40 s)")
    assert third.startswith("waiting: this client's part of the round is done")


def test_photos_of_classes_that_the_model_does_not_know_end_the_command_with_both_names(
    bundle: Bundle, tmp_path: Path
) -> None:
    add_photos(tmp_path / "photos", "horse", 2)
    with running(FakeServer(bundle, fedavg_plan(), rounds=2)) as server:
        result = fedlens(server.url, tmp_path)

    assert result.exit_code == 1
    assert "no photo is of a class that the model knows (cat, dog); the photos are of horse" in result.stderr
    # The server learns no name of a class that it does not have.
    assert server.failures[1].detail == "no photo is of a class of the bundle"


@pytest.mark.usefixtures("photos")
def test_a_round_that_is_given_up_is_an_error_of_once(bundle: Bundle, tmp_path: Path) -> None:
    plan = fedavg_plan()
    plan.statistics.add()
    with running(FakeServer(bundle, plan)) as server:
        result = fedlens(server.url, tmp_path, "--once")

    assert result.exit_code == 1
    assert "given up (unsupported): not supported: the question 'unset'" in result.stdout


@pytest.mark.usefixtures("photos")
def test_an_address_without_encryption_is_refused(tmp_path: Path) -> None:
    result = fedlens("http://fl.example.org", tmp_path)

    assert result.exit_code == 1
    assert "plain HTTP would show the secret" in result.stderr


@pytest.mark.usefixtures("photos")
def test_control_c_ends_a_waiting_client_cleanly(bundle: Bundle, tmp_path: Path) -> None:
    with running(FakeServer(bundle, fedavg_plan(), rounds=0, hold_s=30.0)) as server:
        command = [sys.executable, "-c", "from fedlens.cli import main; main()", "client", "--server", server.url]
        folders = ["--photos", str(tmp_path / "photos"), "--state", str(tmp_path / "state")]
        process = subprocess.Popen(
            command + folders,
            env=os.environ | {"FEDLENS_ENROLMENT_TOKEN": TOKEN},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        enrolled = process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate()

    assert "enrolled as trainer" in enrolled
    assert process.returncode == 130
    assert errors == "fedlens: stopped; nothing is lost, the same command goes on from here\n"


@pytest.mark.usefixtures("photos")
def test_a_mistake_is_told_in_one_line(tmp_path: Path) -> None:
    result = fedlens("https://127.0.0.1:1", tmp_path, token=None)

    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1
    assert "is not enrolled with https://127.0.0.1:1 yet; give an enrolment token (--token-file FILE)" in result.stderr


def test_a_client_with_executorch_tells_that_engine_and_why_there_may_be_no_task(tmp_path: Path) -> None:
    shown = StringIO()
    console = Console(file=shown, width=300)
    with ClientReport(console, tmp_path, EngineName.EXECUTORCH) as report:
        report.happened(Waiting("no_task", 1000))

    assert "made with `fedlens export --target pte` from a frozen backbone" in shown.getvalue()
    told = requirements.capabilities(EngineName.EXECUTORCH)
    assert list(told.formats) == [pb.PROGRAM_FORMAT_PTE]
    assert list(told.bundle_classes) == [pb.BUNDLE_CLASS_FROZEN_BACKBONE]
