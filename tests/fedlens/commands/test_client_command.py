import asyncio
import os
import signal
import sys
import time
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import Result

from fedlens.reports.client_report import ClientReport
from fedlens_edge_client.client import client as client_module
from fedlens_edge_client.client.events import Retrying, Waiting
from fedlens_edge_client.engines.choice import EngineName
from fedlens_edge_client.training import requirements
from fedlens_export.signing import Terms, new_key, private_key, stated
from fedlens_proto.manifest import Bundle
from fedlens_proto.v1 import manifest_pb2 as pb
from tests.edge_client.fakes import TOKEN, FakeServer, answering, fedavg_plan, refusal
from tests.edge_client.linear import LinearChildren, make_bundle
from tests.edge_client.photo_folders import add_photos, make_album
from tests.fedlens.commands.cli import error_text, fedlens


@pytest.fixture
def bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bundle:
    monkeypatch.setattr(client_module, "make_children", LinearChildren)
    return make_bundle(tmp_path / "bundle")


@pytest.fixture(autouse=True)
def photos(tmp_path: Path) -> Path:
    return make_album(tmp_path / "photos")


async def client(folder: Path, *more: object, server: str = "https://127.0.0.1:1", token: str | None = TOKEN) -> Result:
    folders = ("--photos", folder / "photos", "--state", folder / "state")
    command = ("client", "--trust-server", "--server", server, *folders, *more)
    return await asyncio.to_thread(fedlens, *command, FEDLENS_ENROLMENT_TOKEN=token)


async def test_a_client_takes_part_until_the_end_and_says_what_happens(bundle: Bundle, tmp_path: Path) -> None:
    async with FakeServer(bundle, fedavg_plan(20), rounds=2) as server:
        result = await client(tmp_path, server=server.url)

    assert result.exit_code == 0, result.output
    assert "enrolled as trainer" in result.stdout
    assert "task 7, round 1: 16 photos to train on, 4 to test" in result.stdout
    # Zero weights call everything a cat, which half of the four test photos are.
    assert "task 7, round 1: reported, 288 bytes sent; right on 4 test photos: 50.0% -> 100.0%" in result.stdout
    assert "every task that this client can run has ended" in result.stdout
    assert list(server.updates) == [1, 2]


async def test_a_client_tells_the_version_that_it_is_given(bundle: Bundle, tmp_path: Path) -> None:
    async with FakeServer(bundle, fedavg_plan(), rounds=1) as server:
        result = await client(tmp_path, "--once", "--client-version", "7", server=server.url)

    assert result.exit_code == 0
    assert [request.client_version for request in server.check_ins] == [7]


async def test_once_ends_after_one_round(bundle: Bundle, tmp_path: Path) -> None:
    async with FakeServer(bundle, fedavg_plan(), rounds=2) as server:
        result = await client(tmp_path, "--once", "--task", "7", server=server.url)

    assert result.exit_code == 0
    assert list(server.updates) == [1]
    assert server.check_ins[0].task == 7


async def test_a_token_can_come_from_a_file_and_is_needed_only_the_first_time(bundle: Bundle, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    async with FakeServer(bundle, fedavg_plan(), rounds=2) as server:
        first = await client(tmp_path, "--once", "--token-file", tmp_path / "token", server=server.url, token=None)
        second = await client(tmp_path, "--once", server=server.url, token=None)

    assert (first.exit_code, second.exit_code) == (0, 0)
    assert server.calls["clients"] == 1


async def test_a_wrong_token_ends_with_the_reason(bundle: Bundle, tmp_path: Path) -> None:
    async with FakeServer(bundle, fedavg_plan()) as server:
        result = await client(tmp_path, server=server.url, token="wrong")

    assert result.exit_code == 1
    assert result.stderr == "fedlens: the server refuses (forbidden): this enrolment token is not known\n"


async def test_a_client_asks_for_its_publisher_and_remembers_what_it_withdrew(bundle: Bundle, tmp_path: Path) -> None:
    new_key(tmp_path / "ann")
    key = private_key(tmp_path / "ann.key")
    files = ("--photos", tmp_path / "photos", "--floors", tmp_path / "floors", "--publisher", tmp_path / "ann.pub")

    async def run(state: str, serial: int, floor: int) -> Result:
        async with FakeServer(bundle, fedavg_plan()) as server:
            terms = Terms(name="pets", any_app=True, serial=serial, floor=floor)
            server.statement = stated(bundle, key, terms, time.time())
            command = ("client", "--server", server.url, "--state", tmp_path / state, *files, "--once")
            return await asyncio.to_thread(fedlens, *command, FEDLENS_ENROLMENT_TOKEN=TOKEN)

    newer, older = await run("one", 7, 7), await run("other", 6, 0)

    assert (newer.exit_code, older.exit_code) == (0, 1)
    assert "has serial 6; its publisher withdrew those below 7" in " ".join(older.stdout.split())


async def test_a_publisher_that_is_no_public_key_is_named(bundle: Bundle, tmp_path: Path) -> None:
    new_key(tmp_path / "ann")
    folders = ("--photos", tmp_path / "photos", "--state", tmp_path / "state")
    result = await asyncio.to_thread(
        fedlens, "client", "--server", "https://a", *folders, "--publisher", tmp_path / "ann.key"
    )

    assert f"{tmp_path / 'ann.key'}: this is no public key in PEM form; give the .pub file" in error_text(result)


@pytest.mark.parametrize("both", [True, False])
def test_a_client_needs_publishers_or_trust_in_the_server(tmp_path: Path, both: bool) -> None:
    trust = ("--publisher", tmp_path / "a.pub", "--trust-server") if both else ()
    result = fedlens("client", "--server", "https://a", "--photos", tmp_path, "--state", tmp_path, *trust)

    assert "Give --publisher FILE, or --trust-server" in error_text(result, status=2)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "is not enrolled with https://127.0.0.1:1 yet; give an enrolment token (--token-file FILE)"),
        (["--token-file", "gone"], "gone cannot be read as an enrolment token"),
        (["--token-file", os.devnull], f"{os.devnull} holds no enrolment token"),
        (["--server", "http://fl.example.org"], "plain HTTP would show the secret"),
        (["--photos", "nowhere"], "nowhere is no folder"),
        (["--photos", "empty"], "empty holds no photo: put photos"),
    ],
)
async def test_a_mistake_is_told_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], told: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty" / "cat").mkdir(parents=True)

    result = await client(tmp_path, *arguments, token=None)

    assert told in error_text(result)
    assert (result.stdout, result.stderr.count("\n")) == ("", 1)


async def test_photos_that_cannot_be_used_are_counted_and_named_once(
    bundle: Bundle, photos: Path, tmp_path: Path
) -> None:
    for index in range(7):
        (photos / "cat" / f"phone-{index}.heic").write_bytes(b"x")
    (photos / "dog" / "[broken].jpg").write_bytes(b"x")
    add_photos(photos, "horse", 1)
    async with FakeServer(bundle, fedavg_plan(), rounds=2) as server:
        result = await client(tmp_path, server=server.url)

    assert result.exit_code == 0
    shown = ", ".join(f"cat/phone-{index}.heic" for index in range(5))
    assert result.stdout.count(f"{shown} and 2 more") == 1
    assert "(files that cannot be read): dog/[broken].jpg" in result.stdout
    assert "(class 'horse' is not in the model): horse/0-000.png" in result.stdout


async def test_trouble_on_the_way_is_told_while_the_command_goes_on(bundle: Bundle, tmp_path: Path) -> None:
    server = FakeServer(bundle, fedavg_plan())
    server.troubles.append(("clients", answering(lambda: refusal(503, "unavailable", "starting", 3, 1))))
    async with server:
        result = await client(tmp_path, server=server.url)

    assert result.exit_code == 0
    assert "unavailable: starting; trying again" in result.stdout


def report_to(shown: StringIO, now: list[float], engine: EngineName = EngineName.TORCH) -> ClientReport:
    return ClientReport(Console(file=shown, width=300), Path("photos"), engine, now=lambda: now[0])


def test_a_client_says_why_it_waits_at_once_and_every_half_minute_again() -> None:
    shown, now = StringIO(), [0.0]
    with report_to(shown, now) as report:
        report.happened(Waiting("population", 1000))
        for now[0] in (25.0, 29.9, 30.0, 31.0, 60.0):
            report.look()

    line = "waiting: the task starts when enough clients have enrolled"
    assert shown.getvalue().splitlines() == [line, f"{line} (for 30 s)", f"{line} (for 60 s)"]


def test_a_request_that_fails_again_and_again_is_told_every_half_minute() -> None:
    shown, now = StringIO(), [0.0]
    with report_to(shown, now) as report:
        for now[0] in (0.0, 0.5, 12.0, 40.0):
            report.happened(Retrying("connection failed", 0.5, 1))
        # The next one may have succeeded: the server holds a poll for a while before it answers.
        now[0] = 80.0
        report.look()
        report.happened(Waiting("next_round", 1000))

    first, second, third = shown.getvalue().splitlines()
    assert (first, second) == ("connection failed; trying again", "connection failed; trying again (for 40 s)")
    assert third.startswith("waiting: this client's part of the round is done")


async def test_photos_of_classes_that_the_model_does_not_know_end_the_command_with_both_names(
    bundle: Bundle, tmp_path: Path
) -> None:
    add_photos(tmp_path / "horses", "horse", 2)
    async with FakeServer(bundle, fedavg_plan(), rounds=2) as server:
        result = await client(tmp_path, "--photos", tmp_path / "horses", server=server.url)

    assert "no photo is of a class that the model knows (cat, dog); the photos are of horse" in error_text(result)
    # The server learns no name of a class that it does not have.
    assert server.failures[1].detail == "no photo is of a class of the bundle"


async def test_a_round_that_is_given_up_is_an_error_of_once(bundle: Bundle, tmp_path: Path) -> None:
    plan = fedavg_plan()
    plan.statistics.add()
    async with FakeServer(bundle, plan) as server:
        result = await client(tmp_path, "--once", server=server.url)

    assert result.exit_code == 1
    assert "given up (unsupported): not supported: a statistic of no kind" in result.stdout


async def test_control_c_ends_a_waiting_client_cleanly(bundle: Bundle, tmp_path: Path) -> None:
    async with FakeServer(bundle, fedavg_plan(), rounds=0, hold_s=30.0) as server:
        command = [sys.executable, "-c", "from fedlens.cli import main; main()", "client", "--server", server.url]
        command += ["--trust-server", "--photos", str(tmp_path / "photos"), "--state", str(tmp_path / "state")]
        token, pipe = {"FEDLENS_ENROLMENT_TOKEN": TOKEN}, asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(*command, env=os.environ | token, stdout=pipe, stderr=pipe)
        assert process.stdout is not None
        enrolled = await process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, errors = await process.communicate()

    assert b"enrolled as trainer" in enrolled
    assert process.returncode == 130
    assert errors == b"fedlens: stopped; nothing is lost, the same command goes on from here\n"


def test_a_client_with_executorch_tells_that_engine_and_why_there_may_be_no_task() -> None:
    shown = StringIO()
    with report_to(shown, [0.0], EngineName.EXECUTORCH) as report:
        report.happened(Waiting("no_task", 1000))

    assert "made with `fedlens export --target pte` from a frozen backbone" in shown.getvalue()
    told = requirements.capabilities(EngineName.EXECUTORCH)
    assert list(told.formats) == [pb.PROGRAM_FORMAT_PTE]
    assert list(told.bundle_classes) == [pb.BUNDLE_CLASS_FROZEN_BACKBONE]
