"""Uploads in every codec, whole and as deltas; downloads by a delta."""

from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest

from fedlens_edge_client import EdgeClient
from fedlens_edge_client.client.events import Downloaded, Event
from fedlens_proto import blob
from fedlens_proto.blob import Blob
from fedlens_proto.difference import Differences, Sums
from fedlens_proto.manifest import Bundle
from fedlens_proto.v1 import assignment_pb2, blob_pb2, update_pb2
from tests.edge_client.fakes import FakeServer, fedavg_plan
from tests.edge_client.linear import make_bundle

INT8 = blob_pb2.DTYPE_INT8


@pytest.fixture(scope="module")
def whole_model(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """Weights of 2 x 192, so that int8 saves something."""
    return make_bundle(tmp_path_factory.mktemp("whole") / "bundle", frozen=False)


@pytest.mark.parametrize(
    ("codec", "floats", "error"),
    [
        (assignment_pb2.CODEC_FLOAT32, blob_pb2.DTYPE_FLOAT32, 1e-6),
        (assignment_pb2.CODEC_FLOAT16, blob_pb2.DTYPE_FLOAT16, 1e-3),
        # Half of a row's largest change, in units of its scale: 1 / 254 = 0.4%.
        (assignment_pb2.CODEC_INT8, INT8, 4e-3),
    ],
)
@pytest.mark.parametrize("difference", [True, False])
async def test_a_client_sends_what_it_trained_in_the_codec_and_as_the_delta_that_the_plan_names(
    whole_model: Bundle,
    client_of: Callable[..., EdgeClient],
    tmp_path: Path,
    codec: assignment_pb2.Codec,
    floats: blob_pb2.Dtype,
    error: float,
    difference: bool,
) -> None:
    plan = fedavg_plan()
    async with FakeServer(whole_model, plan) as server, client_of(server.url) as client:
        await client.run()
        exact = Blob.from_bytes(server.blob(1))
    plan.upload.codec, plan.upload.base_set = codec, "global" if difference else ""

    async with (
        FakeServer(whole_model, plan) as server,
        client_of(server.url, state=tmp_path / "other", cache=tmp_path / "cache") as client,
    ):
        await client.run()
        sent = Blob.from_bytes(server.blob(1))

    initial = whole_model.initial()
    assert sent.layout.base == (initial.digest if difference else None)
    assert {spec.name: spec.dtype for spec in sent.layout.specs}["fc.weight"] == floats
    found = Sums(initial, sent) if difference else sent
    for name in exact:
        np.testing.assert_allclose(found[name], exact[name], atol=error * np.abs(exact[name]).max())


async def test_a_client_that_has_the_base_fetches_the_delta_alone(
    whole_model: Bundle, client_of: Callable[..., EdgeClient], events: list[Event]
) -> None:
    plan = fedavg_plan()
    plan.upload.tensors.names.append("fc.weight")  # the fake server then keeps `global` as it is
    initial = whole_model.initial()
    moved = {name: value + np.float32(0.25) for name, value in initial.items()}
    raw = blob.encode(Differences(moved, initial), floats=INT8, base=initial.digest)
    async with FakeServer(whole_model, plan, rounds=2) as server, client_of(server.url) as client:
        await client.run_once()
        server.sets |= {"global": blob.encode(Sums(initial, Blob.from_bytes(raw))), "its-delta": raw}
        server.differences["global"] = assignment_pb2.Difference(
            sha256=sha256(raw).digest(), size=len(raw), base=initial.digest
        )
        before = len(events)
        await client.run_once()

    fetched = {event.sha256 for event in events[before:] if isinstance(event, Downloaded)}
    assert fetched == {sha256(raw).digest()}
    assert list(server.updates) == [1, 2]


async def test_a_set_that_is_a_delta_is_not_taken_for_weights(
    whole_model: Bundle, client_of: Callable[..., EdgeClient]
) -> None:
    initial = whole_model.initial()
    async with FakeServer(whole_model, fedavg_plan()) as server, client_of(server.url) as client:
        server.sets["global"] = blob.encode(dict(initial), base=initial.digest)
        await client.run_once()

    assert server.failures[1].reason == update_pb2.FAILURE_REASON_UNSUPPORTED
    assert server.failures[1].detail == (
        f"set 'global' holds the difference to blob {initial.digest.hex()}; a set must hold whole weights"
    )
