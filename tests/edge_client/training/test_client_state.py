"""Client state in later rounds: downloads beside it, other bundles, and predictions."""

from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest

from fedlens_edge_client.client.events import Downloaded, RoundReported
from fedlens_edge_client.errors import ModelError
from fedlens_proto import blob
from fedlens_proto.manifest import Bundle
from fedlens_proto.v1 import assignment_pb2
from tests.edge_client.fakes import assemble, fedavg_plan, keep_all, start_of
from tests.edge_client.federation import Federation, Heard
from tests.edge_client.linear import make_bundle


def keeping(fallback: str) -> assignment_pb2.LocalPlan:
    """Goes on from its client state, at first from `fallback`, and sends what it trained."""
    plan = fedavg_plan()
    start_of(plan).CopyFrom(assignment_pb2.Source(state="mine", download=fallback))
    keep_all(plan, "mine")
    return plan


def weights(value: float) -> bytes:
    return blob.encode({"fc.bias": np.full(2, value, np.float32), "fc.weight": np.full((2, 3), value, np.float32)})


def fetched(events: Heard) -> set[bytes]:
    return {event.sha256 for event in events.of(Downloaded)}


@pytest.fixture
def other(tmp_path: Path) -> Bundle:
    """As for a client that names other models in the middle of a task: its weights are [2, 48], not [2, 3]."""
    return make_bundle(tmp_path / "other", frozen=False)


async def test_a_fallback_is_fetched_only_until_there_is_client_state(federation: Federation, events: Heard) -> None:
    first, second = weights(1.0), weights(2.0)
    async with federation.joined(keeping("start"), rounds=2) as (server, client):
        server.sets["start"] = first
        await client.run_once()
        server.sets["start"] = second
        await client.run_once()

    assert sha256(first).digest() in fetched(events)
    assert sha256(second).digest() not in fetched(events)
    assert sorted(server.updates) == [1, 2]


async def test_a_set_that_the_plan_does_not_name_is_not_fetched(federation: Federation, events: Heard) -> None:
    other = weights(1.0)
    async with federation.joined() as (server, client):
        server.sets["other"] = other
        await client.run_once()

    assert sha256(other).digest() not in fetched(events)


async def test_the_bundles_initial_weights_are_there_without_being_listed(federation: Federation) -> None:
    server = await federation.run(keeping("initial"), rounds=2)

    assert server.bundle.manifest.initial in fetched(federation.events)
    assert len(federation.events.of(RoundReported)) == 2
    # The second round began where the first one ended.
    first, second = server.header(1).evaluations, server.header(2).evaluations
    assert second[0].loss == first[1].loss < first[0].loss


@pytest.mark.parametrize("fallback", ["initial", "start"])
async def test_client_state_of_another_bundle_gives_way_to_the_fallback(
    bundle: Bundle, other: Bundle, federation: Federation, fallback: str
) -> None:
    async with federation.joined(keeping(fallback), rounds=3) as (server, client):
        for server.bundle in (bundle, other, other):
            server.sets["start"] = server.bundle.initial().raw.tobytes()
            await client.run_once()

    assert sorted(server.updates) == [1, 2, 3]
    _, second, third = (server.header(number).evaluations for number in (1, 2, 3))
    # From the zeros of the fallback each of the two classes gets probability 1/2; then from the state after that.
    assert second[0].loss == pytest.approx(second[0].count * np.log(2))
    assert third[0].loss == second[1].loss < second[0].loss


async def test_a_prediction_goes_by_the_fallback_too_if_the_state_is_of_another_bundle(
    federation: Federation, other: Bundle, cat: Path
) -> None:
    async with federation.joined(keeping("initial")) as (server, client):
        await client.run_once()
        server.bundle = other
        await client.run_once()
        predicted = await client.predict(cat)

    assert predicted == {"cat": 0.5, "dog": 0.5}


async def test_without_a_fallback_the_round_fails_with_what_does_not_fit(federation: Federation, other: Bundle) -> None:
    async with federation.joined(keeping("initial"), rounds=2) as (server, client):
        await client.run_once()
        server.bundle = other
        start_of(server.plan).ClearField("download")
        await client.run_once()

    unfit = "client state 'mine': tensor 'fc.weight' is float32[2, 3], needed is float32[2, 48]"
    assert server.failures[2].detail == unfit


async def test_a_prediction_fetches_no_fallback_either(federation: Federation, cat: Path) -> None:
    later = weights(2.0)
    async with federation.joined(keeping("start")) as (server, client):
        server.sets["start"] = weights(1.0)
        await client.run_once()
        server.sets["start"] = later
        await client.run_once()
        await client.predict(cat)

    assert sha256(later).digest() not in fetched(federation.events)


async def test_a_prediction_between_two_phases_goes_by_the_rules_of_the_new_one(
    federation: Federation, cat: Path
) -> None:
    # The last plan started from `global`, which the server's models do not have any more.
    async with federation.joined() as (server, client):
        await client.run_once()
        server.sets = {"personal": weights(0.0)}
        start_of(server.plan).download = "personal"
        await client.run_once()
        predicted = await client.predict(cat)

    assert predicted == {"cat": 0.5, "dog": 0.5}


async def test_a_plan_that_only_asks_says_nothing_about_the_model(federation: Federation, cat: Path) -> None:
    plan = assignment_pb2.LocalPlan(format=1)
    plan.statistics.add().class_counts.SetInParent()
    async with federation.joined(plan) as (_, client):
        await client.run_once()
        with pytest.raises(ModelError, match="no model for this client yet"):
            await client.predict(cat)


async def test_a_model_is_put_together_by_rules_from_downloads_and_initial_weights(
    federation: Federation, cat: Path
) -> None:
    plan = fedavg_plan()
    bias = assignment_pb2.Rule(source=assignment_pb2.Source(state="never-kept", download="some"))
    bias.tensors.names.append("fc.bias")
    initial = assignment_pb2.Rule(source=assignment_pb2.Source(download="initial"))
    plan.instructions[0].CopyFrom(assemble("start", bias, initial))
    async with federation.joined(plan, rounds=0) as (server, client):
        server.sets = {"some": blob.encode({"fc.bias": np.array([80, 0], np.float32)})}
        await client.run_once()
        predicted = await client.predict(cat)

    # With the bias of the initial weights, which are zeros, it would be 1/2.
    assert predicted["cat"] == 1.0
