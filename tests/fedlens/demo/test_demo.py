import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from io import StringIO
from pathlib import Path

import pytest
from PIL import Image
from rich.console import Console

from fedlens.demo.demo import DemoConfig, Running, run_demo
from fedlens.demo.run_folder import MARK, run_folder
from fedlens.demo.scale import Scale, at_most, side_for
from fedlens.demo.server_process import PartDied
from fedlens.digits import write_digits
from fedlens.errors import FolderInUse
from fedlens_edge_client.emulation.partitions import PartitionName, PhotoPool, TooFewPhotos
from tests.edge_client.photo_folders import make_album, write_clients, write_files

FEDLENS = Path(sys.executable).with_name("fedlens")


def write_photos(root: Path, counts: dict[str, int]) -> Path:
    for number, (name, count) in enumerate(counts.items()):
        (root / name).mkdir(parents=True)
        for i in range(count):
            Image.new("RGB", (40, 32), (255 * number, 20 * i, 90)).save(root / name / f"{i}.png")
    return root


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> PhotoPool:
    return PhotoPool.open(write_digits(tmp_path_factory.mktemp("digits")))


def test_digits_are_photos_of_ten_classes_one_in_five_for_tests(digits: PhotoPool) -> None:
    assert digits.class_names == tuple("0123456789")
    assert sum(map(len, digits.train)) + sum(map(len, digits.test)) == 1797
    # 1,797 / 5 = 359.4; each class rounds up.
    assert sum(map(len, digits.test)) == 364


def test_many_photos_let_the_demo_be_as_large_as_wished(digits: PhotoPool) -> None:
    found = Scale.of_cameras(digits, 20, seed=1)

    # The smallest class, 8, has 174 digits: 139 to train on and 35 for tests; 139 // 12 = 11; 550 // 110 = 5.
    assert (found.clients, found.partition.per_class, found.partition.test_per_class, found.epochs) == (20, 11, 10, 5)


def test_few_photos_make_the_demo_small(tmp_path: Path) -> None:
    pool = PhotoPool.open(write_files(tmp_path / "photos", {"cat": 50, "dog": 5}))

    found = Scale.of_cameras(pool, 20, seed=1)

    # Of 5 dogs 1 is held out: 4 to train on, so 4 clients; 4 // 12 = 0, but at least 1 photo per class.
    assert (found.clients, found.partition.per_class, found.partition.test_per_class, found.epochs) == (4, 1, 1, 5)


def test_own_photos_are_divided_among_clients_of_twenty_photos_or_more(tmp_path: Path) -> None:
    pool = PhotoPool.open(write_files(tmp_path / "photos", {"cat": 100, "dog": 50}))

    found = Scale.of_owners(pool, None, seed=1)

    # 80 + 40 photos to train on: 120 // 20 = 6 clients, with at least 120 // 6 // 4 = 5 photos.
    assert (found.clients, found.partition.name, found.partition.min_photos) == (6, PartitionName.DIRICHLET, 5)
    assert len(found.partition.album(pool, 5).photos(1).photos) >= 5


def test_every_owner_is_a_client(tmp_path: Path) -> None:
    pool = PhotoPool.open(write_clients(tmp_path, {f"p{i}": {"cat": 5, "dog": 5} for i in range(30)}))

    found = Scale.of_owners(pool, None, seed=1)

    assert (found.clients, found.partition.name) == (30, PartitionName.CLIENTS)
    assert found.partition.owners_of(pool, 0) == ("p0",)


def test_more_than_fifty_owners_share_fifty_clients(tmp_path: Path) -> None:
    pool = PhotoPool.open(write_clients(tmp_path, {f"p{i:02}": {"cat": 3, "dog": 3} for i in range(60)}))

    assert Scale.of_owners(pool, None, seed=1).clients == 50
    assert Scale.of_owners(pool, 60, seed=1).clients == 60


@pytest.mark.parametrize("of", [Scale.of_cameras, Scale.of_owners])
def test_too_few_photos_name_the_class_and_the_least_number(
    of: Callable[[PhotoPool, int, int], Scale], tmp_path: Path
) -> None:
    pool = PhotoPool.open(write_files(tmp_path / "photos", {"cat": 50, "dog": 2}))

    with pytest.raises(TooFewPhotos, match=r"class 'dog' has 1 train photos in .*, at least 2 are needed"):
        of(pool, 20, 1)


def test_of_very_many_photos_the_same_part_of_every_class_is_taken(tmp_path: Path) -> None:
    pool = PhotoPool.open(write_files(tmp_path / "photos", {"cat": 100, "dog": 20}))

    chosen = at_most(pool, 60)

    # Half of 80 and 16 photos to train on, half of 20 and 4 for tests.
    assert [len(members) for members in (*chosen.train, *chosen.test)] == [40, 8, 10, 2]
    assert at_most(pool, 60).train == chosen.train
    assert at_most(pool, 120) is pool


def test_of_very_many_photos_a_small_class_keeps_as_many_as_the_smallest_demo_takes(tmp_path: Path) -> None:
    of_classes = PhotoPool.open(write_files(tmp_path / "classes", {"cat": 1000, "dog": 10}))
    people = {f"p{i:02}": {"cat": 20} for i in range(20)} | {"p20": {"cat": 50, "dog": 10}}
    of_people = PhotoPool.open(write_clients(tmp_path / "people", people))

    for pool in (of_classes, of_people):
        scale = Scale.of_owners(chosen := at_most(pool, 40), None, seed=1)

        assert all(scale.partition.album(chosen, client).photos(1).photos for client in range(scale.clients))
        assert (len(chosen.train[1]), len(chosen.test[1])) == (2, 1)


def test_of_very_many_photos_every_owner_keeps_some(tmp_path: Path) -> None:
    pool = PhotoPool.open(write_clients(tmp_path, {f"p{i}": {"cat": 5, "dog": 5} for i in range(10)}))

    chosen = at_most(pool, 20)

    assert chosen.owners == pool.owners
    # Of 8 and 2 photos of each owner a fifth, rounded up.
    assert sum(map(len, chosen.train)) == 20
    assert sum(map(len, chosen.test)) == 10


@pytest.mark.parametrize(("size", "side"), [((640, 480), 224), ((300, 192), 224), ((300, 191), 160), ((32, 32), 160)])
def test_large_photos_keep_their_detail(size: tuple[int, int], side: int, tmp_path: Path) -> None:
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        for i in range(3):
            Image.new("RGB", size, (i, 0, 0)).save(tmp_path / name / f"{i}.png")
        (tmp_path / name / "damaged.jpg").write_bytes(name.encode())

    assert side_for(PhotoPool.open(tmp_path)) == side


def test_a_folder_that_no_demo_made_is_not_emptied(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.txt").touch()

    with pytest.raises(FolderInUse, match="which would be emptied"), run_folder(tmp_path):
        pass

    assert (tmp_path / "run" / "thesis.txt").exists()


def test_two_demos_do_not_share_a_folder(tmp_path: Path) -> None:
    with (
        run_folder(tmp_path),
        pytest.raises(FolderInUse, match="another demo runs"),
        run_folder(tmp_path),
    ):
        pass


def test_a_second_demo_starts_with_an_empty_folder(tmp_path: Path) -> None:
    with run_folder(tmp_path) as run:
        (run / "old").touch()

    with run_folder(tmp_path) as run:
        assert [child.name for child in run.iterdir()] == [MARK]


def demo_of(out: Path, photos: Path | None, *, clients: int = 3, rounds: int = 2) -> DemoConfig:
    return DemoConfig(photos=photos, out=out, clients=clients, rounds=rounds, seed=1, workers=1)


@pytest.mark.slow
def test_a_small_demo_on_own_photos_reads_each_once_and_names_what_it_leaves_out(tmp_path: Path) -> None:
    out = StringIO()
    photos = make_album(tmp_path / "photos", 30)
    (photos / "cat" / "note.txt").write_text("not a photo")
    (photos / "dog" / "damaged.png").write_bytes(b"no photo either")
    started: list[Running] = []
    config = demo_of(tmp_path / "demo", photos)

    shown = run_demo(config, Console(file=out, width=200), started.append)

    text = out.getvalue()
    assert "left out 1 no photos by their suffix: cat/note.txt" in text
    assert "left out 1 files that cannot be read: dog/damaged.png" in text
    # One in five of 30 cats and of 31 files of dogs, rounded up, of which one is damaged on either side.
    assert "60 photos read" in text
    assert "2 clients, each with photos of its own" in text
    assert [r.number for r in shown.facts.rounds] == [1, 2]
    assert shown.facts.rounds[-1].model is not None
    assert shown.facts.rounds[-1].model.count == len(shown.comparison.labels)
    assert shown.comparison.together.correct.sum() == shown.facts.rounds[-1].model.correct
    # Red cats and blue dogs: a server with all photos tells them apart.
    assert shown.comparison.pooled is not None
    assert shown.comparison.pooled.accuracy() > 0.9
    # 2 x 1,280 weights and 2 biases as float16, with headers.
    assert all(r.bytes_up / r.members < 6_500 for r in shown.facts.rounds)
    assert shown.report.stat().st_size > 1_000_000
    assert not any(Path(f"/proc/{pid}").exists() for pid in (started[0].server, *started[0].workers))

    again = StringIO()
    run_demo(config, Console(file=again, width=200))

    assert re.search(r"60 photos read in .* s, 60 of them by an earlier demo", again.getvalue())


@pytest.mark.slow
def test_a_killed_server_ends_the_demo_with_the_reason(tmp_path: Path) -> None:
    workers: list[int] = []

    def kill(running: Running) -> None:
        workers.extend(running.workers)
        os.kill(running.server, signal.SIGKILL)

    with pytest.raises(PartDied, match=r"the server \(process \d+\) was killed by SIGKILL"):
        run_demo(demo_of(tmp_path / "demo", None), Console(file=StringIO()), kill)

    assert workers
    assert not any(Path(f"/proc/{pid}").exists() for pid in workers)


def test_too_few_photos_end_the_command_with_status_1_and_the_class(tmp_path: Path) -> None:
    photos = write_photos(tmp_path / "photos", {"red": 8, "blue": 1})

    ended = subprocess.run(
        [FEDLENS, "demo", "--photos", photos, "--out", tmp_path / "demo"], capture_output=True, text=True, check=False
    )

    assert ended.returncode == 1
    assert "class 'blue' has 0 train photos" in ended.stderr
    assert "Traceback" not in ended.stderr


def children(pid: int) -> dict[str, list[int]]:
    """Process ids of the demo's parts, by what they are."""
    found: dict[str, list[int]] = {"server": [], "worker": []}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            parent = int(re.findall(r"PPid:\s+(\d+)", (entry / "status").read_text())[0])
            command = (entry / "cmdline").read_bytes()
        except (OSError, IndexError):
            continue
        if parent == pid and b"fedlens.demo.child_command" in command:
            found["server"].append(int(entry.name))
        if parent == pid and b"spawn_main" in command:
            found["worker"].append(int(entry.name))
    return found


def until(reached: Callable[[], bool], seconds: float = 60.0) -> bool:
    end = time.monotonic() + seconds
    while not (done := reached()) and time.monotonic() < end:
        time.sleep(0.05)
    return done


@pytest.fixture
def running_demo(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], dict[str, list[int]]]]:
    """`fedlens demo` on digits, in its first round, with the process ids of its parts."""
    command = [FEDLENS, "demo", "--out", tmp_path / "demo", "--clients", "4", "--rounds", "100", "--workers", "2"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("round   1"):
                break
        yield process, children(process.pid)
        process.kill()


Demo = tuple[subprocess.Popen[str], dict[str, list[int]]]


def gone(parts: dict[str, list[int]]) -> bool:
    return not any(Path(f"/proc/{pid}").exists() for pids in parts.values() for pid in pids)


@pytest.mark.long
def test_a_killed_worker_ends_the_command_with_status_1_and_the_reason(running_demo: Demo) -> None:
    process, parts = running_demo

    os.kill(parts["worker"][0], signal.SIGKILL)
    _, stderr = process.communicate(timeout=60)

    assert process.returncode == 1
    assert re.search(r"worker \d .* was killed by SIGKILL", stderr)
    assert "Traceback" not in stderr
    assert gone(parts)


@pytest.mark.slow
def test_parts_end_when_the_demo_is_killed(running_demo: Demo) -> None:
    process, parts = running_demo

    process.kill()
    process.communicate()

    assert [len(pids) for pids in parts.values()] == [1, 2]
    assert until(lambda: gone(parts))


@pytest.mark.long
def test_ctrl_c_ends_the_demo_with_status_130(running_demo: Demo) -> None:
    process, parts = running_demo

    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)

    assert process.returncode == 130
    assert "Traceback" not in stderr
    assert gone(parts)


@pytest.mark.long
def test_the_demo_on_digits_learns_them(tmp_path: Path) -> None:
    config = DemoConfig(photos=None, out=tmp_path / "demo", clients=20, rounds=10, seed=1)

    shown = run_demo(config, Console(file=StringIO()))

    assert shown.report.is_file()
    assert len(shown.facts.rounds) == 10
    assert shown.facts.rounds[0].before is not None
    assert shown.facts.rounds[0].before.ratio < 0.3
    assert shown.facts.measured[-1][0] == 10
    assert shown.facts.measured[-1][1] > 0.9
    # The model that is left is the one that was measured.
    assert shown.comparison.together.accuracy() == shown.facts.measured[-1][1]
