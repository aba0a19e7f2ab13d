import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from shutil import copyfile, rmtree
from typing import Any

import pytest

from fedlens.admin_client import AdminClient
from fedlens.demo.server_process import ServerProcess
from fedlens.digits import write_digits
from fedlens_edge_client.client.events import RoundReported, Trained
from fedlens_edge_client.emulation.faults import FaultEntry, FaultKind, FaultPlan
from fedlens_edge_client.emulation.fleet.config import FleetConfig
from fedlens_edge_client.emulation.fleet.messages import EVALUATOR, Happened, Message
from fedlens_edge_client.emulation.fleet.processes import WorkerDied
from fedlens_edge_client.emulation.fleet.running import run_fleet
from fedlens_edge_client.emulation.fleet.status import FleetStatus
from fedlens_edge_client.emulation.partitions import Partition, PartitionName, PhotoPool
from fedlens_edge_client.emulation.presence import PresencePlan
from fedlens_proto.manifest import Bundle
from fedlens_proto.v1 import admin_pb2, admission_pb2
from tests.integration.federation import tiny_bundle

MakeFleet = Callable[..., tuple[FleetConfig, AdminClient]]
CLIENTS = 3
ROUNDS = 4
SHORT_DEADLINE_S = 12.0


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> PhotoPool:
    return PhotoPool.open(write_digits(tmp_path_factory.mktemp("digits")))


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return tiny_bundle(tmp_path_factory.mktemp("tiny") / "bundle")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    with ServerProcess.fresh(tmp_path / "server") as process:
        yield process


@pytest.fixture
def fleet_of(tmp_path: Path, pool: PhotoPool, bundle: Bundle, server: ServerProcess) -> MakeFleet:
    """Makes a task and a fleet for it."""

    def make(
        plan: FaultPlan | None = None, deadline_s: float = 60.0, rounds: int = ROUNDS, **others: Any
    ) -> tuple[FleetConfig, AdminClient]:
        admin = AdminClient(server.profile)
        settings = {
            "method": "fedavg",
            "rounds": rounds,
            "population": CLIENTS,
            "deadline_s": deadline_s,
            "min_reports": 1,
            "seed": "ab" * 32,
        }
        admin.create_task("digits", [bundle], json.dumps(settings))
        config = FleetConfig(
            server=server.url,
            clients=CLIENTS,
            pool=pool,
            partition=Partition(name=PartitionName.CAMERA_NONIID, seed=1, per_class=3),
            plan=plan or FaultPlan(),
            key=bytes(32),
            state=tmp_path / "fleet",
            workers=1,
            token=server.token("trainer"),
            evaluator_token=server.token("evaluator"),
            ca=server.ca,
        )
        return replace(config, **others), admin

    return make


def members_by_state(admin: AdminClient) -> list[Counter[str]]:
    return [
        Counter(admin_pb2.MemberState.Name(member.state)[len("MEMBER_STATE_") :] for member in result.members)
        for result in admin.show("digits").rounds
    ]


@pytest.mark.slow
def test_a_stopped_fleet_goes_on_without_losing_or_repeating_an_update(fleet_of: MakeFleet) -> None:
    config, admin = fleet_of()
    trained: list[tuple[int, int]] = []
    receipts: list[tuple[int, int]] = []

    def listen(message: Message, status: FleetStatus) -> None:
        if isinstance(message, Happened) and message.index != EVALUATOR:
            if isinstance(message.event, Trained):
                trained.append((message.index, message.event.round_number))
            if isinstance(message.event, RoundReported):
                receipts.append((message.index, message.event.round_number))

    # However late this process is to stop them, they do not come to the end without it.
    held = FaultPlan(fault=(FaultEntry(client=0, round=ROUNDS, kind=FaultKind.DELAY, seconds=1000.0),))
    run_fleet(replace(config, plan=held), listen, should_stop=lambda: bool(trained))
    stopped_after = len(receipts)
    run_fleet(config, listen)

    every = sorted((index, r) for r in range(1, ROUNDS + 1) for index in range(CLIENTS))
    assert stopped_after < len(every)
    assert sorted(trained) == every
    assert sorted(receipts) == every
    assert admin.show("digits").task.state == admin_pb2.TASK_STATE_FINISHED
    assert members_by_state(admin) == [Counter(REPORTED=CLIENTS)] * ROUNDS


@pytest.mark.slow
def test_faults_of_a_plan_reach_the_server_and_the_evaluator_measures_every_test_photo(
    fleet_of: MakeFleet, pool: PhotoPool
) -> None:
    plan = FaultPlan(
        fault=(
            FaultEntry(client=0, round=1, kind=FaultKind.NAN),
            FaultEntry(client=1, round=1, kind=FaultKind.DUPLICATE),
            FaultEntry(client=2, round=2, kind=FaultKind.CORRUPT),
            FaultEntry(client=1, round=3, kind=FaultKind.VANISH),
        )
    )
    config, admin = fleet_of(plan)
    receipts: Counter[int] = Counter()

    def listen(message: Message, status: FleetStatus) -> None:
        if isinstance(message, Happened) and isinstance(message.event, RoundReported) and message.index != EVALUATOR:
            receipts[message.event.round_number] += 1
            if receipts == {1: 2}:
                # Workers have started, and so long do the others wait for one that vanishes.
                admin.change("digits", json.dumps({"deadline_s": SHORT_DEADLINE_S}))

    status = run_fleet(config, listen)

    assert members_by_state(admin) == [
        Counter(REPORTED=2, QUARANTINED=1),
        Counter(REPORTED=2, QUARANTINED=1),
        Counter(REPORTED=2, PENDING=1),
        Counter(REPORTED=3),
    ]
    assert [line.split(":")[0] for line in status.trouble] == ["round 1, client 0", "round 2, client 2"]
    assert status.failures == {}
    measured = {sums.count for result in admin.show("digits").rounds for sums in getattr(result, "global")}
    assert measured == {sum(len(members) for members in pool.test)}


@pytest.mark.slow
def test_phones_of_a_fleet_come_and_go_on_the_clock_of_their_server(
    tmp_path: Path, pool: PhotoPool, bundle: Bundle
) -> None:
    # Every other hour, and most phones go in the middle of it.
    presence = PresencePlan(hours=(1.0, 0.0) * 12, time_zones=2, leaves=0.7, clock_off_s=86400.0)
    server = ServerProcess.fresh(tmp_path / "server")
    server.options = ("--hour-lasts", "1")
    settings = {"method": "fedavg", "selection": "arrivals", "rounds": ROUNDS, "goal": 2, "deadline_s": 1800}
    with server:
        admin = AdminClient(server.profile)
        admin.create_task("digits", [bundle], json.dumps(settings))
        config = FleetConfig(
            server=server.url,
            clients=6,
            pool=pool,
            partition=Partition(name=PartitionName.CAMERA_NONIID, seed=1, per_class=1),
            plan=FaultPlan(),
            key=bytes(32),
            state=tmp_path / "fleet",
            workers=1,
            token=server.token("trainer"),
            ca=server.ca,
            presence=presence,
            hour_lasts_s=1.0,
        )
        stopped: list[FleetStatus] = []

        run_fleet(config, lambda message, status: stopped.append(status), lambda: any(s.reports for s in stopped))
        status = run_fleet(config)

        shown = admin.show("digits")
    assert status.failures == {}
    assert shown.task.state == admin_pb2.TASK_STATE_FINISHED
    assert len({member.client_id for found in shown.rounds for member in found.members}) > 2


@pytest.mark.slow
def test_a_worker_that_dies_ends_the_fleet_with_its_name(fleet_of: MakeFleet) -> None:
    config, _ = fleet_of(workers=2)
    pids: list[int] = []

    def kill(message: Message, status: FleetStatus) -> None:
        os.kill(pids[1], signal.SIGKILL)

    with pytest.raises(WorkerDied, match=r"worker 1 \(process \d+; client 1, evaluator\) was killed by SIGKILL"):
        run_fleet(config, kill, on_started=pids.extend)

    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_a_wrong_token_ends_the_fleet_with_the_servers_words(fleet_of: MakeFleet) -> None:
    config, _ = fleet_of(token="wrong", evaluator_token=None)

    status = run_fleet(config)

    assert status.failures
    assert all("the server refuses" in failure for failure in status.failures.values())


def test_a_fleet_that_waits_in_vain_for_a_client_that_failed_ends(fleet_of: MakeFleet) -> None:
    config, admin = fleet_of()
    few = admin.create_token("few", admission_pb2.TOKEN_ROLE_TRAINER, max_uses=CLIENTS - 1)

    # The server does not hold check-ins of phones, so they are told at once what they wait for.
    status = run_fleet(replace(config, token=few.secret, evaluator_token=None, presence=PresencePlan()))

    assert len(status.failures) == 1
    assert status.rounds == {}


@pytest.mark.slow
def test_a_stopped_fleet_goes_on_without_a_client_that_was_banned(fleet_of: MakeFleet) -> None:
    config, admin = fleet_of()
    seen: list[FleetStatus] = []

    run_fleet(config, lambda message, status: seen.append(status), should_stop=lambda: any(s.reports for s in seen))
    # No update in an outbox may tell that rounds have begun before the banned client fails.
    rmtree(config.state)
    admin.ban("clients", config.client_id(2).hex(), "it is broken")
    status = run_fleet(config)

    assert status.failures.keys() == {2}
    assert admin.show("digits").task.state == admin_pb2.TASK_STATE_FINISHED


@pytest.mark.long
def test_a_fleet_whose_partition_makes_photos_takes_part_with_the_model_that_it_names(
    fleet_of: MakeFleet, bundle: Bundle
) -> None:
    partition = Partition(name=PartitionName.FEATURE_SKEW, seed=1, clients=CLIENTS)
    config, admin = fleet_of(rounds=2, partition=partition, models=(bundle.manifest.model,))

    run_fleet(config, lambda message, status: None)

    assert members_by_state(admin) == [Counter(REPORTED=CLIENTS)] * 2
    # 1,433 train photos and 364 test photos for three clients, the first of whom needs no copies: 478 + 477 and two
    # thirds of the 364, with less than one of each class of which rounding makes another client's.
    assert len(list(config.state.glob("made-photos/*/*.png"))) == pytest.approx(478 + 477 + 243, abs=10)


@pytest.mark.slow
def test_a_fleet_of_people_learns_from_some_and_is_measured_on_others(
    fleet_of: MakeFleet, pool: PhotoPool, tmp_path: Path
) -> None:
    # Five people have four photos of each of three digits. A fifth of them, one, is unseen.
    for label in range(3):
        for number, photo in enumerate(pool.train[label][:20]):
            folder = tmp_path / "people" / f"person-{number // 4}" / str(label)
            folder.mkdir(parents=True, exist_ok=True)
            copyfile(photo.path, folder / photo.path.name)
    people = PhotoPool.open(tmp_path / "people")
    partition = Partition(name=PartitionName.CLIENTS, seed=1, clients=CLIENTS, unseen=0.2)
    kept = tmp_path / "kept"
    config, admin = fleet_of(rounds=2, pool=people, partition=partition, photo_features=kept)

    status = run_fleet(config)

    assert status.failures == {}
    assert members_by_state(admin) == [Counter(REPORTED=CLIENTS)] * 2
    measured = {sums.count for result in admin.show("digits").rounds for sums in getattr(result, "global")}
    assert measured == {12}
    assert [path.parent for path in tmp_path.rglob("features.sqlite3")] == [kept]


def command_of(server: ServerProcess, pool: PhotoPool, state: Path, *options: str) -> list[str]:
    return [
        str(Path(sys.executable).with_name("fedlens")),
        "fleet",
        *("--server", server.url, "--ca", str(server.ca), "--token-file", str(server.ca.with_name("trainer.token"))),
        *("--photos", str(pool.root), "--state", str(state), "--workers", "1", *options),
    ]


@pytest.mark.long
def test_parts_of_a_fleet_make_the_federation_that_the_whole_one_makes(
    pool: PhotoPool, bundle: Bundle, tmp_path: Path
) -> None:
    settings = {"method": "fedavg", "rounds": 2, "population": CLIENTS, "deadline_s": 60, "seed": "ab" * 32}
    # What clients draw, and how photos are divided, depends on a client's index and on the number of all.
    divided = ("--partition", "dirichlet", "--seed", "3")
    whole = [("--clients", "3")]
    parts = [("--first", "0", "--clients", "2", "--of", "3"), ("--first", "2", "--clients", "1", "--of", "3")]
    results = []
    for name, commands in (("whole", whole), ("parts", parts)):
        with ServerProcess.fresh(tmp_path / name) as server:
            admin = AdminClient(server.profile)
            admin.create_task("digits", [bundle], json.dumps(settings))
            running = []
            for number, options in enumerate(commands):
                state = tmp_path / f"{name}-{number}"
                state.mkdir()
                (state / "fleet.key").write_text("5a" * 32 + "\n")
                running.append(subprocess.Popen(command_of(server, pool, state, *options, *divided)))
            assert [process.wait(timeout=100) for process in running] == [0] * len(commands)
            shown = admin.show("digits")
            members = [
                [(member.client_id, member.num_examples, member.bytes_received) for member in result.members]
                for result in shown.rounds
            ]
            results.append((members, admin.model("digits").blob_sha256))

    assert results[0] == results[1]
    assert [len(members) for members in results[0][0]] == [3, 3]


@pytest.mark.slow
def test_ctrl_c_ends_the_command_with_status_130_and_the_same_command_goes_on(
    fleet_of: MakeFleet, server: ServerProcess, tmp_path: Path
) -> None:
    rounds = 30  # more than pass while a signal arrives
    config, admin = fleet_of(rounds=rounds)
    command = command_of(server, config.pool, tmp_path / "state", "--clients", str(CLIENTS))

    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as first:
        assert first.stdout is not None
        # The first line says what there is; the next one, that a round is done.
        what, done = first.stdout.readline(), first.stdout.readline()
        first.send_signal(signal.SIGINT)
        stdout, stderr = first.communicate(timeout=60)
    second = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)

    assert what.startswith("3 clients with 1,433 train photos")
    assert done.startswith("round   1: 3 of 3 clients reported")
    assert first.returncode == 130
    assert "the same command goes on" in stdout
    assert "Traceback" not in stderr
    assert second.returncode == 0
    assert admin.show("digits").task.state == admin_pb2.TASK_STATE_FINISHED
    assert members_by_state(admin) == [Counter(REPORTED=CLIENTS)] * rounds
