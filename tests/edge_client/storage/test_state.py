import errno
import os
import sqlite3
import stat
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from fedlens_edge_client.errors import StateError
from fedlens_edge_client.storage.client_state import KeptSets
from fedlens_edge_client.storage.outbox import Outbox
from fedlens_edge_client.storage.state import SCHEMA_VERSION, State
from fedlens_edge_client.storage.tensor_files import TensorFiles
from fedlens_proto.v1 import assignment_pb2, blob_pb2, update_pb2

SERVER = "https://fl.example.org"
F32 = blob_pb2.DTYPE_FLOAT32


def test_the_secret_is_made_once_and_readable_by_its_owner_alone(tmp_path: Path) -> None:
    with closing(State.open(tmp_path / "state", SERVER)) as state:
        secret = state.secret
    with closing(State.open(tmp_path / "state", SERVER)) as state:
        again = state.secret

    assert secret == again
    assert stat.S_IMODE((tmp_path / "state" / "secret").stat().st_mode) == 0o600


def test_two_folders_are_two_identities(tmp_path: Path) -> None:
    with (
        closing(State.open(tmp_path / "a", SERVER)) as one,
        closing(State.open(tmp_path / "b", SERVER)) as two,
    ):
        assert one.client_id != two.client_id


def test_an_injected_secret_is_not_written_to_disk(tmp_path: Path) -> None:
    with closing(State.open(tmp_path / "state", SERVER, b"s" * 32)):
        pass

    assert not (tmp_path / "state" / "secret").exists()


def test_a_state_folder_belongs_to_one_server(tmp_path: Path) -> None:
    State.open(tmp_path / "state", SERVER).close()
    with pytest.raises(StateError, match=r"belongs to https://fl\.example\.org, not to server https://other"):
        State.open(tmp_path / "state", "https://other")


def test_a_state_folder_belongs_to_one_identity(tmp_path: Path) -> None:
    State.open(tmp_path / "state", SERVER, b"s" * 32).close()
    with pytest.raises(StateError, match="not to this identity"):
        State.open(tmp_path / "state", SERVER, b"t" * 32)


def test_two_clients_cannot_use_one_state_folder_at_a_time(tmp_path: Path) -> None:
    with closing(State.open(tmp_path / "state", SERVER)):
        with pytest.raises(StateError, match="in use by another process"):
            State.open(tmp_path / "state", SERVER)


def test_a_newer_state_folder_is_refused_and_left_alone(tmp_path: Path) -> None:
    State.open(tmp_path / "state", SERVER).close()
    with closing(sqlite3.connect(tmp_path / "state" / "client.sqlite3")) as database:
        database.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    with pytest.raises(StateError, match="written by a newer fedlens"):
        State.open(tmp_path / "state", SERVER)


def test_a_damaged_database_is_named(tmp_path: Path) -> None:
    State.open(tmp_path / "state", SERVER).close()
    (tmp_path / "state" / "client.sqlite3").write_bytes(b"no database at all" * 1000)
    with pytest.raises(StateError, match=r"client\.sqlite3 cannot be used"):
        State.open(tmp_path / "state", SERVER)


def test_a_damaged_secret_is_named(tmp_path: Path) -> None:
    State.open(tmp_path / "state", SERVER).close()
    (tmp_path / "state" / "secret").write_bytes(b"short")
    with pytest.raises(StateError, match="must hold 32 bytes, found 5"):
        State.open(tmp_path / "state", SERVER)


def test_a_secret_that_cannot_be_read_is_named_and_leaves_the_folder_free(tmp_path: Path) -> None:
    (tmp_path / "state" / "secret").mkdir(parents=True)
    with pytest.raises(StateError, match="secret cannot be used"):
        State.open(tmp_path / "state", SERVER)
    (tmp_path / "state" / "secret").rmdir()

    State.open(tmp_path / "state", SERVER).close()


def test_a_file_where_the_folder_should_be_is_named(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("x")
    with pytest.raises(StateError, match="cannot be used"):
        State.open(tmp_path / "state", SERVER)


def test_results_leave_the_outbox_in_the_order_in_which_they_came(tmp_path: Path) -> None:
    with closing(State.open(tmp_path / "state", SERVER)) as state:
        outbox, _, _ = furniture(state)
        for task, round_number in ((2, 1), (1, 9)):
            outbox.put(assignment(task, round_number), update_pb2.UpdateHeader(protocol=1), None, {})
        first = outbox.first()
        assert first is not None
        outbox.delivered(first)
        second = outbox.first()
        assert second is not None
        outbox.delivered(second)

        assert (first.task, second.task, outbox.first()) == (2, 1, None)


def test_files_that_no_row_names_are_deleted_when_the_folder_is_opened(tmp_path: Path) -> None:
    with closing(State.open(tmp_path / "state", SERVER)) as state:
        outbox, kept, files = furniture(state)
        stored = files.store({"w": np.ones(100_000, np.float32)}, F32)
        orphan = files.store({"w": np.zeros(100_000, np.float32)}, F32)
        outbox.put(assignment(1, 1), update_pb2.UpdateHeader(protocol=1), None, {"mine": stored})
        furniture(state)

        assert files.path(stored.sha256).exists()
        assert not files.path(orphan.sha256).exists()
        assert kept.current(1, "mine") is None


def test_a_kept_set_replaces_the_one_before_and_its_file(tmp_path: Path) -> None:
    with closing(State.open(tmp_path / "state", SERVER)) as state:
        outbox, kept, files = furniture(state)
        for number in (1, 2):
            stored = files.store({"w": np.full(100_000, number, np.float32)}, F32)
            outbox.delivered(
                outbox.put(assignment(1, number), update_pb2.UpdateHeader(protocol=1), None, {"mine": stored})
            )
        current = kept.current(1, "mine")

        assert current is not None
        assert current["w"][0] == 2
        assert len(list((tmp_path / "state" / "tensors").iterdir())) == 1


def test_a_refused_result_leaves_the_kept_set_before_it_current(tmp_path: Path) -> None:
    with closing(State.open(tmp_path / "state", SERVER)) as state:
        outbox, kept, files = furniture(state)
        results = []
        for number in (1, 2):
            stored = files.store({"w": np.full(3, number, np.float32)}, F32)
            results.append(
                outbox.put(assignment(1, number), update_pb2.UpdateHeader(protocol=1), None, {"mine": stored})
            )
        outbox.delivered(results[0])
        outbox.refused(results[1])
        current = kept.current(1, "mine")

        assert current is not None
        assert current["w"][0] == 1
        assert kept.current(2, "mine") is None


def test_stored_tensors_that_are_gone_are_named(tmp_path: Path) -> None:
    with closing(State.open(tmp_path / "state", SERVER)) as state:
        outbox, kept, files = furniture(state)
        stored = files.store({"w": np.ones(100_000, np.float32)}, F32)
        outbox.delivered(outbox.put(assignment(1, 1), update_pb2.UpdateHeader(protocol=1), None, {"mine": stored}))
        files.path(stored.sha256).unlink()
        with pytest.raises(StateError, match="the state folder is damaged"):
            kept.current(1, "mine")


def test_tensors_for_which_there_is_no_room_are_named_and_leave_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    files = TensorFiles(tmp_path / "tensors")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StateError, match="No space left on device"):
        files.store({"w": np.ones(100_000, np.float32)}, F32)

    assert list((tmp_path / "tensors").iterdir()) == []


def furniture(state: State) -> tuple[Outbox, KeptSets, TensorFiles]:
    files = TensorFiles(state.folder / "tensors")
    kept = KeptSets(state, files)
    return Outbox(state, files, kept), kept, files


def assignment(task: int, round_number: int) -> assignment_pb2.Assignment:
    return assignment_pb2.Assignment(task=task, round=round_number, answer=assignment_pb2.ANSWER_UPDATE)
