"""Fetching a weighted sum: computed while it is sent, whole and in ranges."""

import logging
from hashlib import sha256

import pytest

from fedlens_proto import blob
from fedlens_proto.v1 import assignment_pb2
from tests.server.http.running import Client, Server, update
from tests.server.networks import network, weights

CLASSIFIERS = [((1.0, 0.0), (0.0, 1.0)), ((2.0, 0.0), (3.0, 3.0))]
WIDTH = 200_000  # 2 x 200,000 float32: more than one piece


async def mixing(server: Server, width: int = WIDTH) -> list[tuple[Client, assignment_pb2.BlobSet]]:
    """Two clients in the second round, with what each is to fetch."""
    await server.create(network(width), method="pfedsim", options={"warm_up": 0})
    clients = [await server.client(i) for i in range(2)]
    for i, client in enumerate(clients):
        assignment = await client.assignment()
        trained = blob.encode(weights(1.0 + i, CLASSIFIERS[i], width))
        assert (await client.upload(assignment, update(assignment, trained))).status == 200
    assignments = [await client.assignment() for client in clients]
    return [(client, assignment.sets[0]) for client, assignment in zip(clients, assignments, strict=True)]


def path(item: assignment_pb2.BlobSet) -> str:
    return f"/v1/blobs/{item.sha256.hex()}"


@pytest.mark.parametrize("width", [3, WIDTH])
async def test_a_member_fetches_its_weighted_sum(server: Server, width: int) -> None:
    for client, item in await mixing(server, width):
        answer = await client.send("GET", path(item))

        assert answer.status == 200
        assert sha256(answer.body).digest() == item.sha256
        assert answer.headers["Content-Length"] == str(item.size)
        assert answer.headers["Cache-Control"] == "private, immutable"
        assert answer.headers["Accept-Ranges"] == "bytes"


async def test_ranges_of_a_weighted_sum_are_those_of_the_whole(server: Server) -> None:
    (client, item), _ = await mixing(server)
    whole = (await client.send("GET", path(item))).body

    for first, last in ((0, 9), (1_050_001, 1_050_002), (333, item.size - 1), (item.size - 7, item.size - 1)):
        answer = await client.send("GET", path(item), Range=f"bytes={first}-{last}")

        assert (answer.status, answer.body) == (206, whole[first : last + 1])
        assert answer.headers["Content-Range"] == f"bytes {first}-{last}/{item.size}"


async def test_a_range_outside_of_a_weighted_sum_is_416(server: Server) -> None:
    (client, item), _ = await mixing(server, 3)

    answer = await client.send("GET", path(item), Range="bytes=9999999-")

    assert answer.outcome == (416, "wrong-range")
    assert answer.headers["Content-Range"] == f"bytes */{item.size}"


async def test_the_head_of_a_weighted_sum_tells_its_length_and_computes_nothing(server: Server) -> None:
    (client, item), _ = await mixing(server, 3)

    answer = await client.send("HEAD", path(item))

    assert (answer.status, answer.body) == (200, b"")
    assert answer.headers["Content-Length"] == str(item.size)


async def test_another_clients_weighted_sum_is_unknown(server: Server) -> None:
    (_, item), (other, _) = await mixing(server, 3)

    assert (await other.send("GET", path(item))).outcome == (404, "unknown")


async def test_bytes_of_a_weighted_sum_are_counted(server: Server) -> None:
    (client, item), (other, others) = await mixing(server, 3)

    await client.send("GET", path(item))
    await client.send("HEAD", path(item))
    await other.send("GET", path(others), Range="bytes=0-9")

    assert (await server.show()).rounds[1].bytes_sent == item.size + 10


async def test_a_weighted_sum_whose_source_is_lost_meanwhile_ends_the_connection_and_is_not_passed_off_as_whole(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    (client, item), _ = await mixing(server)
    values = server.service.federation.tasks[1].values
    for name, tensors in values.items():
        if name.endswith("/model"):
            with server.service.store.blobs.path(tensors.digest).open("r+b") as file:
                file.truncate(1_200_000)

    with pytest.raises(Exception, match=r"payload|closed|disconnected"):
        await client.send("GET", path(item))

    assert [record.levelno for record in caplog.records if "computed to its end" in record.message] == [logging.ERROR]
