import errno
import os
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest

from fedlens_edge_client.errors import StateError
from fedlens_edge_client.storage.client_state import ClientState
from fedlens_edge_client.storage.feature_cache import FeatureCache
from fedlens_edge_client.storage.outbox import Outbox, Result
from fedlens_edge_client.storage.state_folder import SCHEMA_VERSION, StateFolder
from fedlens_edge_client.storage.tensor_files import EncodedTensors, TensorFiles
from fedlens_proto.blob import Blob
from fedlens_proto.v1 import assignment_pb2, blob_pb2, update_pb2

SERVER = "https://fl.example.org"
F32 = blob_pb2.DTYPE_FLOAT32


def test_the_secret_is_made_once_and_readable_by_its_owner_alone(tmp_path: Path) -> None:
    secrets = []
    for _ in range(2):
        with closing(StateFolder.open(tmp_path / "state", SERVER)) as state:
            secrets.append(state.secret)

    assert secrets[0] == secrets[1]
    assert stat.S_IMODE((tmp_path / "state" / "secret").stat().st_mode) == 0o600


def test_two_folders_are_two_identities(tmp_path: Path) -> None:
    with (
        closing(StateFolder.open(tmp_path / "a", SERVER)) as one,
        closing(StateFolder.open(tmp_path / "b", SERVER)) as two,
    ):
        assert one.client_id != two.client_id


def test_an_injected_secret_is_not_written_to_disk(tmp_path: Path) -> None:
    StateFolder.open(tmp_path / "state", SERVER, b"s" * 32).close()

    assert not (tmp_path / "state" / "secret").exists()


def test_a_server_that_forgot_the_client_has_asked_it_for_no_pause(tmp_path: Path) -> None:
    with closing(StateFolder.open(tmp_path / "state", SERVER)) as state:
        state.set("not_before", b"2000000000.0")
        state.reset()

        assert state.get("not_before") is None


def test_a_state_folder_belongs_to_one_server(tmp_path: Path) -> None:
    StateFolder.open(tmp_path / "state", SERVER).close()
    with pytest.raises(StateError, match=r"belongs to https://fl\.example\.org, not to server https://other"):
        StateFolder.open(tmp_path / "state", "https://other")


def test_a_state_folder_belongs_to_one_identity(tmp_path: Path) -> None:
    StateFolder.open(tmp_path / "state", SERVER, b"s" * 32).close()
    with pytest.raises(StateError, match="not to this identity"):
        StateFolder.open(tmp_path / "state", SERVER, b"t" * 32)


def test_two_clients_cannot_use_one_state_folder_at_a_time(tmp_path: Path) -> None:
    with closing(StateFolder.open(tmp_path / "state", SERVER)):
        with pytest.raises(StateError, match="in use by another process"):
            StateFolder.open(tmp_path / "state", SERVER)


def test_a_newer_state_folder_is_refused_and_left_alone(tmp_path: Path) -> None:
    StateFolder.open(tmp_path / "state", SERVER).close()
    with closing(sqlite3.connect(tmp_path / "state" / "client.sqlite3")) as database:
        database.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    with pytest.raises(StateError, match="written by a newer fedlens"):
        StateFolder.open(tmp_path / "state", SERVER)


def test_a_damaged_database_is_named(tmp_path: Path) -> None:
    StateFolder.open(tmp_path / "state", SERVER).close()
    (tmp_path / "state" / "client.sqlite3").write_bytes(b"no database at all" * 1000)
    with pytest.raises(StateError, match=r"client\.sqlite3 cannot be used"):
        StateFolder.open(tmp_path / "state", SERVER)


def test_a_damaged_secret_is_named(tmp_path: Path) -> None:
    StateFolder.open(tmp_path / "state", SERVER).close()
    (tmp_path / "state" / "secret").write_bytes(b"short")
    with pytest.raises(StateError, match="must hold 32 bytes, found 5"):
        StateFolder.open(tmp_path / "state", SERVER)


def test_a_secret_that_cannot_be_read_is_named_and_leaves_the_folder_free(tmp_path: Path) -> None:
    (tmp_path / "state" / "secret").mkdir(parents=True)
    with pytest.raises(StateError, match="secret cannot be used"):
        StateFolder.open(tmp_path / "state", SERVER)
    (tmp_path / "state" / "secret").rmdir()

    StateFolder.open(tmp_path / "state", SERVER).close()


def test_a_file_where_the_folder_should_be_is_named(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("x")
    with pytest.raises(StateError, match="cannot be used"):
        StateFolder.open(tmp_path / "state", SERVER)


@dataclass(frozen=True)
class Stores:
    """The contents of an open state folder."""

    files: TensorFiles
    client_state: ClientState
    outbox: Outbox

    def put(self, task: int, round_number: int, state: dict[str, EncodedTensors], *uploads: EncodedTensors) -> Result:
        assignment = assignment_pb2.Assignment(task=task, round=round_number, answer=assignment_pb2.ANSWER_UPDATE)
        return self.outbox.put(assignment, update_pb2.UpdateHeader(protocol=1), uploads, state)

    def store(self, value: float, count: int = 100_000) -> EncodedTensors:
        """Tensors that are a file, unless `count` is small."""
        return self.files.store({"w": np.full(count, value, np.float32)}, F32)


def opened(state: StateFolder) -> Stores:
    files = TensorFiles(state.folder / "tensors")
    client_state = ClientState(state, files)
    return Stores(files, client_state, Outbox(state, files, client_state))


@pytest.fixture
def state(tmp_path: Path) -> Iterator[StateFolder]:
    with closing(StateFolder.open(tmp_path / "state", SERVER)) as state:
        yield state


@pytest.fixture
def stores(state: StateFolder) -> Stores:
    return opened(state)


def test_results_leave_the_outbox_in_the_order_in_which_they_came(stores: Stores) -> None:
    for task, round_number in ((2, 1), (1, 9)):
        stores.put(task, round_number, {})
    left = []
    while (first := stores.outbox.first()) is not None:
        left.append(first.task)
        stores.outbox.delivered(first)

    assert left == [2, 1]


def test_a_result_of_several_blobs_is_read_as_it_was_written_when_the_folder_is_opened_again(tmp_path: Path) -> None:
    assignment = assignment_pb2.Assignment(task=3, round=4, answer=assignment_pb2.ANSWER_EVALUATION)
    with closing(StateFolder.open(tmp_path / "state", SERVER)) as state:
        stores = opened(state)
        # Two files with part of a row between them.
        uploads = [stores.store(1), stores.store(2, count=3), stores.store(3)]
        put = stores.outbox.put(assignment, update_pb2.UpdateHeader(protocol=1), uploads, {})

    with closing(StateFolder.open(tmp_path / "state", SERVER)) as state:
        stores = opened(state)
        found = stores.outbox.first()
        assert found is not None
        body = b"".join(blob if isinstance(blob, bytes) else blob.read_bytes() for blob in (found.header, *found.blobs))
        stores.outbox.delivered(found)

        assert stores.outbox.first() is None
    assert found == put
    assert [isinstance(blob, Path) for blob in found.blobs] == [True, False, True]
    assert sha256(body).digest() == found.body_sha256
    assert list((tmp_path / "state" / "tensors").iterdir()) == []


def test_files_that_no_row_names_are_deleted_when_the_folder_is_opened(stores: Stores, state: StateFolder) -> None:
    stored, _ = stores.store(1), stores.store(0)
    stores.put(1, 1, {"mine": stored})
    opened(state)

    assert list((state.folder / "tensors").iterdir()) == [stores.files.path(stored.sha256)]
    assert stores.client_state.current(1, "mine") is None


def test_new_client_state_replaces_the_one_before_and_its_file(stores: Stores, tmp_path: Path) -> None:
    for number in (1, 2):
        stores.outbox.delivered(stores.put(1, number, {"mine": stores.store(number)}))
    current = stores.client_state.current(1, "mine")

    assert current is not None
    assert current["w"][0] == 2
    assert len(list((tmp_path / "state" / "tensors").iterdir())) == 1


def test_a_refused_result_leaves_the_client_state_before_it_current_in_all_its_sets(
    stores: Stores, tmp_path: Path
) -> None:
    # A set in a row and one in a file, which both results keep; and one that only the refused result keeps.
    delivered = {"mine": stores.store(1, count=3), "large": stores.store(1)}
    refused = {"mine": stores.store(2, count=3), "large": stores.store(2), "new": stores.store(3)}
    results = [stores.put(1, number, state) for number, state in enumerate((delivered, refused), 1)]
    stores.outbox.delivered(results[0])
    stores.outbox.refused(results[1])
    current = {name: stores.client_state.current(1, name) for name in refused}

    assert {name: None if state is None else state["w"][0] for name, state in current.items()} == {
        "mine": 1,
        "large": 1,
        "new": None,
    }
    assert stores.client_state.current(2, "mine") is None
    assert len(list((tmp_path / "state" / "tensors").iterdir())) == 1


def test_state_that_a_delivery_replaces_while_it_is_read_is_read_as_the_newer_one(
    stores: Stores, state: StateFolder
) -> None:
    class Between(TensorFiles):
        def open(self, digest: bytes, inline: bytes | None) -> Blob:
            while results:
                stores.outbox.delivered(results.pop())
            return super().open(digest, inline)

    stores.outbox.delivered(stores.put(1, 1, {"mine": stores.store(1)}))
    results = [stores.put(1, 2, {"mine": stores.store(2)})]
    current = ClientState(state, Between(state.folder / "tensors")).current(1, "mine")

    assert current is not None and current["w"][0] == 2


def test_a_server_that_forgot_the_client_leaves_no_tensors_behind(stores: Stores, state: StateFolder) -> None:
    stores.outbox.delivered(stores.put(1, 1, {"mine": stores.store(1)}))
    kept = list((state.folder / "tensors").iterdir())
    state.reset()

    assert len(kept) == 1
    assert list((state.folder / "tensors").iterdir()) == []


def test_stored_tensors_that_are_gone_are_named(stores: Stores) -> None:
    stored = stores.store(1)
    stores.outbox.delivered(stores.put(1, 1, {"mine": stored}))
    stores.files.path(stored.sha256).unlink()
    with pytest.raises(StateError, match="the state folder is damaged"):
        stores.client_state.current(1, "mine")


def test_a_result_whose_tensors_are_gone_is_named(stores: Stores) -> None:
    upload = stores.store(1)
    stores.put(1, 1, {}, upload)
    stores.files.path(upload.sha256).unlink()

    with pytest.raises(StateError, match=r"stored tensors are missing: .*; the state folder is damaged"):
        stores.outbox.first()


def test_what_stands_in_the_way_of_tensors_and_features_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "tensors" / "folder").mkdir(parents=True)

    with pytest.raises(StateError, match=r"the folder for tensors cannot be made: .*file"):
        TensorFiles(tmp_path / "file")
    with pytest.raises(StateError, match=r"old tensors cannot be deleted: .*folder"):
        TensorFiles(tmp_path / "tensors").sweep([])
    with closing(StateFolder.open(tmp_path, SERVER)) as state:
        with pytest.raises(StateError, match=r"old tensors cannot be deleted: .*folder"):
            state.reset()
    with pytest.raises(StateError, match=r"the folder of features cannot be made: .*file"):
        FeatureCache.in_folder(tmp_path / "file", 1)


def test_a_cache_of_features_that_is_closed_while_in_use_leaves_the_file_to_others(tmp_path: Path) -> None:
    cache = FeatureCache(tmp_path / "features.sqlite3", 1 << 20)
    cache.put(b"space", {b"photo": b"value"})
    cache.close()
    cache.put(b"space", {b"photo": b"other"})
    found = cache.get(b"space", [b"photo"])

    assert found == {}
    with closing(FeatureCache(tmp_path / "features.sqlite3", 1 << 20)) as others:
        assert others.get(b"space", [b"photo"]) == {b"photo": b"value"}


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
