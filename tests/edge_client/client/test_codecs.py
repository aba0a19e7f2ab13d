"""Uploads in every codec, whole and as deltas; downloads by a delta."""

from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest

from fedlens_edge_client.client.events import Downloaded
from fedlens_proto import blob
from fedlens_proto.blob import Blob
from fedlens_proto.difference import Differences, Sums
from fedlens_proto.v1 import assignment_pb2, blob_pb2, update_pb2
from tests.edge_client.fakes import fedavg_plan
from tests.edge_client.federation import Federation
from tests.edge_client.linear import make_bundle

INT8 = blob_pb2.DTYPE_INT8


@pytest.fixture
def whole(federation: Federation, tmp_path: Path) -> Federation:
    """Of a bundle with weights of 2 x 192, so that int8 saves something."""
    return replace(federation, bundle=make_bundle(tmp_path / "bundle", frozen=False))


@pytest.mark.parametrize(
    ("codec", "floats", "error"),
    [
        (assignment_pb2.CODEC_FLOAT32, blob_pb2.DTYPE_FLOAT32, 1e-6),
        (assignment_pb2.CODEC_FLOAT16, blob_pb2.DTYPE_FLOAT16, 1e-3),
        # Half of a row's largest change, in units of its scale: 1 / 254 = 0.4%.
        (assignment_pb2.CODEC_INT8, INT8, 4e-3),
    ],
)
@pytest.mark.parametrize("base", ["global", ""])
async def test_a_client_sends_what_it_trained_in_the_codec_and_as_the_delta_that_the_plan_names(
    whole: Federation,
    tmp_path: Path,
    codec: assignment_pb2.Codec,
    floats: blob_pb2.Dtype,
    error: float,
    base: str,
) -> None:
    plan = fedavg_plan()
    exact = Blob.from_bytes((await whole.run(plan)).blob(1))
    plan.uploads[0].codec, plan.uploads[0].base = codec, base

    sent = Blob.from_bytes((await whole.run(plan, state=tmp_path / "other")).blob(1))

    initial = whole.bundle.initial()
    assert sent.layout.base == (initial.digest if base else None)
    assert {spec.name: spec.dtype for spec in sent.layout.specs}["fc.weight"] == floats
    found = Sums(initial, sent) if base else sent
    for name in exact:
        np.testing.assert_allclose(found[name], exact[name], atol=error * np.abs(exact[name]).max())


async def test_a_client_that_has_the_base_fetches_the_delta_alone(whole: Federation) -> None:
    plan = fedavg_plan()
    plan.uploads[0].tensors.names.append("fc.weight")  # the fake server then keeps `global` as it is
    initial = whole.bundle.initial()
    moved = {name: value + np.float32(0.25) for name, value in initial.items()}
    raw = blob.encode(Differences(moved, initial), floats=INT8, base=initial.digest)
    digest = sha256(raw).digest()
    async with whole.joined(plan, rounds=2) as (server, client):
        await client.run_once()
        server.sets |= {"global": blob.encode(Sums(initial, Blob.from_bytes(raw))), "its-delta": raw}
        server.differences["global"] = assignment_pb2.Difference(sha256=digest, size=len(raw), base=initial.digest)
        whole.events.clear()
        await client.run_once()

    assert {event.sha256 for event in whole.events.of(Downloaded)} == {digest}
    assert list(server.updates) == [1, 2]


async def test_a_set_that_is_a_delta_is_not_taken_for_weights(whole: Federation) -> None:
    initial = whole.bundle.initial()
    async with whole.joined() as (server, client):
        server.sets["global"] = blob.encode(dict(initial), base=initial.digest)
        await client.run_once()

    assert server.failures[1].reason == update_pb2.FAILURE_REASON_UNSUPPORTED
    assert server.failures[1].detail == (
        f"set 'global' holds the difference to blob {initial.digest.hex()}; a set must hold whole weights"
    )
