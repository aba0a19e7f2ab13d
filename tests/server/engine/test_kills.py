"""`kill -9` at any moment loses nothing that was acknowledged and changes no byte of the result."""

import random
import subprocess
import sys
from contextlib import closing
from hashlib import sha256
from pathlib import Path

import pytest

from fedlens_server.engine.operators import tasks
from tests.server.bundles import tiny_bundle
from tests.server.elsewhere import needs_a_folder
from tests.server.fakes import Bench, client_ids

pytestmark = needs_a_folder  # test_takeovers.py kills servers whose state is elsewhere

CLIENTS, ROUNDS = 6, 4
# Large enough that uploads and models are files, not rows.
FEATURES = 12_000


def drive(folder: Path) -> bytes:
    """Go on with the federation until it is finished; every receipt is noted in a file. Gives the model's digest."""
    receipts = folder.parent / "receipts"
    with closing(Bench(folder)) as server:
        server.make(tiny_bundle(FEATURES), rounds=ROUNDS, population=CLIENTS)
        server.enrol(client_ids(CLIENTS))
        while any([step(server, client, receipts) for client in client_ids(CLIENTS)]):  # every one takes its step
            server.advance()
        return tasks.model(server.federation, "task").blob_sha256


def step(server: Bench, client: bytes, receipts: Path) -> bool:
    """Report if there is something to do; whether the client is not finished."""
    response = server.check_in(client)
    if response.HasField("assignment"):
        number = client_ids(CLIENTS).index(client) + 1
        receipt = server.report(client, shift=0.01 * number**2, num_examples=number)
        with receipts.open("a") as file:
            file.write(f"{response.assignment.round} {client.hex()} {receipt.body_sha256.hex()}\n")
    return not response.HasField("finished")


def killed_and_driven_to_the_end(folder: Path, kills: int, seed: int) -> bytes:
    chance = random.Random(seed)
    program = "import sys; from pathlib import Path; from tests.server.engine.test_kills import drive; print('at work')"
    program += "; sys.stdout.flush(); drive(Path(sys.argv[1]))"
    for _ in range(kills):
        process = subprocess.Popen(
            [sys.executable, "-c", program, folder],
            cwd=Path(__file__).parents[3],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert process.stdout is not None
        process.stdout.readline()  # imported; what follows is what is to be interrupted
        try:
            process.wait(chance.uniform(0.005, 0.15))
        except subprocess.TimeoutExpired:
            process.kill()
        process.communicate()
    return drive(folder)


def check(tmp_path: Path, kills: int, seed: int) -> None:
    for name in ("plain", "killed"):
        (tmp_path / name).mkdir()
    plain = drive(tmp_path / "plain" / "state")

    killed = killed_and_driven_to_the_end(tmp_path / "killed" / "state", kills, seed)

    assert killed == plain
    noted = [line.split() for line in (tmp_path / "killed" / "receipts").read_text().splitlines()]
    # Whoever was given a receipt was never asked for that round again, so each round and client is noted once.
    assert len({(number, client) for number, client, _ in noted}) == len(noted)
    named = [path for path in (tmp_path / "killed" / "state" / "blobs").iterdir() if path.is_file()]
    assert all(sha256(path.read_bytes()).hexdigest() == path.name for path in named)


@pytest.mark.slow
def test_kills_change_no_byte_of_the_result(tmp_path: Path) -> None:
    check(tmp_path, kills=5, seed=1)


@pytest.mark.long
@pytest.mark.parametrize("seed", [2, 3])
def test_many_kills_change_no_byte_of_the_result(tmp_path: Path, seed: int) -> None:
    check(tmp_path, kills=20, seed=seed)
