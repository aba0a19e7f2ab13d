"""Client state in later rounds: downloads beside it, other bundles, and predictions."""

from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest

from fedlens_edge_client import EdgeClient
from fedlens_edge_client.client.events import Downloaded, Event, RoundReported
from fedlens_proto import blob
from fedlens_proto.manifest import Bundle
from fedlens_proto.v1 import assignment_pb2
from tests.edge_client.fakes import FakeServer, fedavg_plan
from tests.edge_client.linear import make_bundle

MakeClient = Callable[..., EdgeClient]


def keeping(fallback: str) -> assignment_pb2.LocalPlan:
    """Goes on from its client state, at first from `fallback`, and sends what it trained."""
    plan = fedavg_plan()
    plan.start[0].source.CopyFrom(assignment_pb2.SetSource(kept="mine", download=fallback))
    plan.keep.add(set="mine")
    return plan


def weights(value: float) -> bytes:
    return blob.encode({"fc.bias": np.full(2, value, np.float32), "fc.weight": np.full((2, 3), value, np.float32)})


def fetched(events: list[Event]) -> set[bytes]:
    return {event.sha256 for event in events if isinstance(event, Downloaded)}


async def test_a_fallback_is_fetched_only_until_there_is_client_state(
    bundle: Bundle, client_of: MakeClient, events: list[Event]
) -> None:
    first, second = weights(1.0), weights(2.0)
    async with FakeServer(bundle, keeping("start"), rounds=2) as server, client_of(server.url) as client:
        server.sets["start"] = first
        await client.run_once()
        server.sets["start"] = second
        await client.run_once()

    assert sha256(first).digest() in fetched(events)
    assert sha256(second).digest() not in fetched(events)
    assert sorted(server.updates) == [1, 2]


async def test_a_set_that_the_plan_does_not_name_is_not_fetched(
    bundle: Bundle, client_of: MakeClient, events: list[Event]
) -> None:
    other = weights(1.0)
    async with FakeServer(bundle, fedavg_plan()) as server, client_of(server.url) as client:
        server.sets["other"] = other
        await client.run_once()

    assert sha256(other).digest() not in fetched(events)


async def test_the_bundles_initial_weights_are_there_without_being_listed(
    bundle: Bundle, client_of: MakeClient, events: list[Event]
) -> None:
    async with FakeServer(bundle, keeping("initial"), rounds=2) as server, client_of(server.url) as client:
        await client.run_once()
        outcome = await client.run_once()

    assert bundle.manifest.initial in fetched(events)
    assert isinstance(outcome, RoundReported)
    # The second round began where the first one ended.
    first, second = server.header(1).evaluations, server.header(2).evaluations
    assert second[0].loss == first[1].loss < first[0].loss


@pytest.mark.parametrize("fallback", ["initial", "start"])
async def test_client_state_of_another_bundle_gives_way_to_the_fallback(
    bundle: Bundle, client_of: MakeClient, tmp_path: Path, fallback: str
) -> None:
    # As for a client that names other models in the middle of a task: the new bundle's weights are [2, 48], not [2, 3].
    other = make_bundle(tmp_path / "other", frozen=False)
    async with FakeServer(bundle, keeping(fallback), rounds=3) as server, client_of(server.url) as client:
        server.sets["start"] = bundle.initial().raw.tobytes()
        await client.run_once()
        server.bundle = other
        server.sets["start"] = other.initial().raw.tobytes()
        await client.run_once()
        await client.run_once()

    assert sorted(server.updates) == [1, 2, 3]
    _, second, third = (server.header(number).evaluations for number in (1, 2, 3))
    # From the zeros of the fallback each of the two classes gets probability 1/2; then from the state after that.
    assert second[0].loss == pytest.approx(second[0].count * np.log(2))
    assert third[0].loss == second[1].loss < second[0].loss


async def test_a_prediction_goes_by_the_fallback_too_if_the_state_is_of_another_bundle(
    bundle: Bundle, client_of: MakeClient, tmp_path: Path, photos: Path
) -> None:
    async with FakeServer(bundle, keeping("initial")) as server, client_of(server.url) as client:
        await client.run_once()
        server.bundle = make_bundle(tmp_path / "other", frozen=False)
        await client.run_once()
        predicted = await client.predict(photos / "cat" / "0-000.png")

    assert predicted == {"cat": 0.5, "dog": 0.5}


async def test_without_a_fallback_the_round_fails_with_what_does_not_fit(
    bundle: Bundle, client_of: MakeClient, tmp_path: Path
) -> None:
    async with FakeServer(bundle, keeping("initial"), rounds=2) as server, client_of(server.url) as client:
        await client.run_once()
        server.bundle = make_bundle(tmp_path / "other", frozen=False)
        server.plan.start[0].source.ClearField("download")
        await client.run_once()

    assert (
        server.failures[2].detail
        == "client state 'mine': tensor 'fc.weight' is float32[2, 3], the bundle has float32[2, 48]"
    )


async def test_a_prediction_fetches_no_fallback_either(
    bundle: Bundle, client_of: MakeClient, photos: Path, events: list[Event]
) -> None:
    later = weights(2.0)
    async with FakeServer(bundle, keeping("start")) as server, client_of(server.url) as client:
        server.sets["start"] = weights(1.0)
        await client.run_once()
        server.sets["start"] = later
        await client.run_once()
        await client.predict(photos / "cat" / "0-000.png")

    assert sha256(later).digest() not in fetched(events)


async def test_a_prediction_between_two_phases_goes_by_the_downloads_of_the_new_one(
    bundle: Bundle, client_of: MakeClient, photos: Path
) -> None:
    # The last plan started from `global`, which the server's models do not have any more.
    async with FakeServer(bundle, fedavg_plan()) as server, client_of(server.url) as client:
        await client.run_once()
        server.sets = {"personal": weights(0.0)}
        await client.run_once()
        predicted = await client.predict(photos / "cat" / "0-000.png")

    assert predicted == {"cat": 0.5, "dog": 0.5}


async def test_a_plan_that_only_asks_says_nothing_about_the_model(
    bundle: Bundle, client_of: MakeClient, photos: Path
) -> None:
    plan = assignment_pb2.LocalPlan()
    plan.start.add().source.download = "initial"
    plan.statistics.add().class_counts.SetInParent()
    sure = blob.encode({"fc.bias": np.array([80, 0], np.float32), "fc.weight": np.zeros((2, 3), np.float32)})
    async with FakeServer(bundle, plan) as server, client_of(server.url) as client:
        await client.run_once()
        server.sets = {"personal": sure}
        await client.run_once()
        predicted = await client.predict(photos / "cat" / "0-000.png")

    # The initial weights are zeros; those of the server's model are sure of cats.
    assert predicted["cat"] == 1.0


async def test_before_the_first_plan_a_prediction_takes_each_tensor_from_a_set_that_has_it(
    bundle: Bundle, client_of: MakeClient, photos: Path
) -> None:
    sure = blob.encode({"fc.bias": np.array([80, 0], np.float32)})
    async with FakeServer(bundle, fedavg_plan(), rounds=0) as server, client_of(server.url) as client:
        server.sets = {"initial": bundle.initial().raw.tobytes(), "some": sure}
        await client.run_once()
        predicted = await client.predict(photos / "cat" / "0-000.png")

    # With the bias of the initial weights, which are zeros, it would be 1/2.
    assert predicted["cat"] == 1.0
