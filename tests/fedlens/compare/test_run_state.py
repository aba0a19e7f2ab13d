import os
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from fedlens.compare import run_state
from fedlens.compare.run_state import LOG_FILE, Changes, keep, redo


def write(folder: Path, **files: str) -> None:
    for name, text in files.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        # Written long before: what is recent is told again.
        os.utime(path, ns=(time.time_ns() - 10**9,) * 2)


def read(folder: Path) -> dict[str, str | None]:
    return {
        path.relative_to(folder).as_posix(): path.read_text() if path.is_file() else None for path in folder.rglob("*")
    }


def test_a_folder_follows_another_and_only_changes_travel(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    write(here, times="1", client__state="a" * 10_000, client__tensors__0="t", server__wal="w")
    changes = Changes(here)

    keep(there, changes.take())

    assert read(there) == read(here)
    write(here, times="1 2")
    (here / "client" / "tensors" / "0").unlink()
    (here / "client" / "tensors").rmdir()
    (here / "server" / "wal").unlink()
    later = changes.take()
    keep(there, later)
    assert read(there) == read(here)
    assert len(later) < 1000


def test_what_was_written_just_before_is_told_again_because_its_time_may_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    write(here, times="1")
    file = here / "times"
    now = time.time_ns()
    os.utime(file, ns=(now, now))
    # Just before, by this clock, however long a busy machine takes from here to there.
    monkeypatch.setattr(run_state, "time", SimpleNamespace(time_ns=lambda: now + 99_000_000))
    changes = Changes(here)
    keep(there, changes.take())
    file.write_text("2")
    os.utime(file, ns=(now, now))

    keep(there, changes.take())

    assert read(there) == {"times": "2"}


def test_a_state_whose_keeping_was_killed_is_finished_by_redo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    write(here, a="1", b="1", gone="1")
    changes = Changes(here)
    keep(there, changes.take())
    write(here, a="2", b="2")
    (here / "gone").unlink()
    later = changes.take()
    with monkeypatch.context() as killed:
        killed.setattr(run_state, "redo", lambda folder: None)
        keep(there, later)
    write(there, a="2")  # so far it came

    redo(there)
    redo(there)

    assert read(there) == read(here) == {"a": "2", "b": "2"}
    assert not (there / LOG_FILE).exists()
