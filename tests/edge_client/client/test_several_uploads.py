"""Several blobs in one body, delivered once together with the client state of the same round."""

import pytest

from fedlens_proto.blob import Blob
from fedlens_proto.v1 import assignment_pb2
from tests.edge_client.fakes import fedavg_plan, hang_up, keep_all, parse_body, start_of
from tests.edge_client.federation import Federation

pytestmark = pytest.mark.usefixtures("photos")


def plan() -> assignment_pb2.LocalPlan:
    """Goes on from client state and sends what it started from, too, as float16."""
    result = fedavg_plan()
    start_of(result).CopyFrom(assignment_pb2.Source(state="mine", download="initial"))
    keep_all(result, "mine")
    result.uploads.add(name="before", value="start", codec=assignment_pb2.CODEC_FLOAT16)
    return result


async def test_the_blobs_of_a_round_come_in_the_plans_order(federation: Federation) -> None:
    server = await federation.run(plan(), rounds=2)

    header, (_, before) = parse_body(server.updates[2])
    assert [upload.name for upload in header.uploads] == ["weights", "before"]
    # The second round starts from the state that the first has kept, which is the first's weights.
    first = Blob.from_bytes(server.blob(1))
    kept = Blob.from_bytes(before)
    assert {name: tensor.astype("<f2").tolist() for name, tensor in first.items()} == {
        name: tensor.astype("<f2").tolist() for name, tensor in kept.items()
    }


async def test_a_body_of_several_blobs_is_sent_again_byte_for_byte(federation: Federation) -> None:
    async with federation.joined(plan()) as (server, client):
        server.troubles.append(("update", server.after_update(hang_up)))
        await client.run_once()
        sent = dict(server.updates)
        await client.run_once()

    assert list(server.updates) == [1] and server.updates == sent
    assert server.calls["update"] == 2
