"""The sum of clipped changes, the noise, and the update that they become."""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedlens_proto import blob
from fedlens_proto.blob import Array, Blob
from fedlens_proto.difference import Differences, Sums
from fedlens_proto.v1 import blob_pb2
from fedlens_server.planning.method import GLOBAL, NothingToAggregate, State, Update
from fedlens_server.rules import privacy
from fedlens_server.rules.privacy import Shapes, clipped_sum, factors, gaussian, private_update, unit_of
from tests.server.fakes import ALICE, BOB, CAROL
from tests.server.methods.tasks import tools
from tests.server.rules.private_tasks import TASKS, planned

CODECS = {"f32": blob_pb2.DTYPE_FLOAT32, "f16": blob_pb2.DTYPE_FLOAT16, "int8": blob_pb2.DTYPE_INT8}
SHAPES = {"a": (2,), "b": (2, 1)}
once = cache(planned)


def received(
    trained: Mapping[str, Array], sent: Mapping[str, Array], codec: str, difference: bool
) -> Mapping[str, Array]:
    """A client's tensors as the server decodes them."""
    if not difference:
        return Blob.from_bytes(blob.encode(trained, floats=CODECS[codec]))
    told = blob.encode(Differences(trained, sent), floats=CODECS[codec], base=bytes(32))
    return Sums(sent, Blob.from_bytes(told))


def sums(updates: list[Update], shapes: Shapes, clip: float, unit: float) -> dict[str, Array]:
    scales = factors(updates, shapes, clip)
    return {
        name: clipped_sum(updates, scales, unit, name, 0, int(np.prod(shape))) * unit for name, shape in shapes.items()
    }


def norm(tensors: Mapping[str, Array]) -> float:
    return float(np.sqrt(sum(np.square(each.astype(np.float64)).sum() for each in tensors.values())))


def update(client: bytes, sent: Mapping[str, Array], a: list[float], b: list[float]) -> Update:
    """A client that changed `a` and `b` by so much."""
    value = {"a": sent["a"] + np.float32(a), "b": sent["b"] + np.float32(b).reshape(2, 1)}
    return Update(client=client, num_examples=7, values={"weights": value}, sent={GLOBAL: sent})


def ones() -> dict[str, Array]:
    return {"a": np.ones(2, np.float32), "b": np.ones((2, 1), np.float32)}


@pytest.mark.parametrize("name", TASKS)
@settings(max_examples=30, deadline=None)
@given(
    codec=st.sampled_from(sorted(CODECS)),
    difference=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
    scales=st.lists(st.floats(-6, 3), min_size=1, max_size=5),
    clip=st.floats(1e-3, 1e3),
    noise=st.floats(0.001, 1000),
    data=st.data(),
)
def test_setting_one_change_to_zero_moves_the_sum_before_noise_by_at_most_the_clipping_norm(
    name: str,
    codec: str,
    difference: bool,
    seed: int,
    scales: list[float],
    clip: float,
    noise: float,
    data: st.DataObject,
) -> None:
    task, generator = once(name), np.random.default_rng(seed)
    model = {key: generator.normal(size=shape).astype(np.float32) for key, shape in task.shapes.items()}
    sent = Blob.from_bytes(blob.encode(model, floats=CODECS[codec]))
    trained = [
        {key: sent[key] + np.float32(10**scale * generator.normal(size=shape)) for key, shape in task.shapes.items()}
        for scale in scales
    ]
    updates = [
        Update(
            client=bytes([i]),
            num_examples=i,
            values={"weights": received(each, sent, codec, difference)},
            sent={GLOBAL: sent},
        )
        for i, each in enumerate(trained)
    ]
    one = data.draw(st.integers(0, len(updates) - 1))
    unchanged = Update(client=bytes([one]), num_examples=0, values={"weights": sent}, sent={GLOBAL: sent})
    unit = unit_of(clip, noise)

    before = sums(updates, task.shapes, clip, unit)
    after = sums([*updates[:one], unchanged, *updates[one + 1 :]], task.shapes, clip, unit)

    assert norm({key: before[key] - after[key] for key in before}) <= clip


def test_a_change_is_scaled_over_all_tensors_as_one_vector_and_a_small_one_stays() -> None:
    sent = ones()
    large = update(ALICE, sent, [4, 0], [0, 3])  # norm 5, clipped to 1: 0.8 and 0.6
    small = update(BOB, sent, [0, 0.25], [0.25, 0])

    found = sums([large, small], SHAPES, 1.0, unit_of(1.0, 1.0))

    np.testing.assert_allclose(found["a"], [0.8, 0.25], atol=1e-6)
    np.testing.assert_allclose(found["b"], [0.25, 0.6], atol=1e-6)


def test_a_change_without_a_finite_norm_counts_as_none() -> None:
    sent = ones()

    found = sums([update(ALICE, sent, [np.inf, 0], [0, 0]), update(BOB, sent, [0.5, 0], [0, 0])], SHAPES, 1.0, 2**-30)

    np.testing.assert_array_equal(found["a"], [0.5, 0])


def test_noise_has_the_deviation_that_is_asked_for() -> None:
    sent = {"w": np.zeros(1_000_000, np.float32)}
    idle = Update(client=ALICE, num_examples=1, values={"weights": sent}, sent={GLOBAL: sent})

    found = private_update([idle], {"w": (1_000_000,)}, clip=0.5, noise=3.0, goal=10).values["weights"]["w"]

    # z C / goal = 3 * 0.5 / 10; a deviation of a million draws is within 0.07 % of it, two times out of three.
    assert found.std(dtype=np.float64) == pytest.approx(0.15, rel=0.01)
    assert abs(found.mean(dtype=np.float64)) < 0.001
    # Of a normal distribution 4.55 % lie beyond two deviations, 0.27 % beyond three.
    assert (abs(found) > 0.3).mean() == pytest.approx(0.0455, rel=0.05)
    assert (abs(found) > 0.45).mean() == pytest.approx(0.0027, rel=0.15)


def test_draws_are_independent_of_each_other() -> None:
    found = gaussian(200_000)

    halves = found[:100_000], found[100_000:]
    # A correlation of 100,000 independent pairs has deviation 0.0032.
    assert abs(np.corrcoef(*halves)[0, 1]) < 0.02
    assert abs(np.corrcoef(found[:-1], found[1:])[0, 1]) < 0.02
    assert len(gaussian(3)) == 3


def test_every_call_draws_other_noise() -> None:
    sent = ones()
    updates = [update(ALICE, sent, [1, 0], [0, 0])]

    first, second = (private_update(updates, SHAPES, clip=1.0, noise=1.0, goal=1).values["weights"] for _ in range(2))

    assert not np.intersect1d(first["a"], second["a"]).size


@pytest.mark.parametrize("goal", [1, 4])
def test_the_sum_is_divided_by_the_goal_however_many_came_and_clients_count_alike(
    goal: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(privacy, "gaussian", np.zeros)
    sent = ones()
    updates = [update(client, sent, [0.5, 0], [0, 0.25]) for client in (ALICE, BOB)]

    found = private_update(updates, SHAPES, clip=1.0, noise=1.0, goal=goal)

    np.testing.assert_allclose(found.values["weights"]["a"], [1 + 1 / goal, 1], atol=1e-6)
    np.testing.assert_allclose(found.values["weights"]["b"], [[1], [1 + 0.5 / goal]], atol=1e-6)
    assert found.values["weights"]["a"].dtype == np.float32


@pytest.mark.parametrize("name", TASKS)
def test_the_method_takes_the_noisy_model_as_it_is(name: str) -> None:
    task = once(name)
    start = task.method.begin(task.phase, State(), replace(tools(), initial=task.initial))
    sent = dict(task.method.download(task.phase, start, ALICE) or {})
    value = {key: sent[GLOBAL][key] + np.float32(0.125) for key in task.shapes}
    updates = [Update(client=each, num_examples=0, values={"weights": value}, sent=sent) for each in (ALICE, BOB)]

    ruled = private_update(updates, task.shapes, clip=1.0, noise=1.0, goal=2)
    state = task.method.aggregate(task.phase, start, [ruled], tools())

    assert state.shared[GLOBAL].keys() == task.shapes.keys()
    for key, tensor in ruled.values["weights"].items():
        np.testing.assert_array_equal(state.shared[GLOBAL][key], tensor)


def test_clients_that_were_sent_different_models_have_no_sum() -> None:
    updates = [update(client, ones(), [0, 0], [0, 0]) for client in (ALICE, BOB, CAROL)]

    with pytest.raises(NothingToAggregate, match="sent different models"):
        private_update(updates, SHAPES, clip=1.0, noise=1.0, goal=3)


def test_a_tensor_of_many_spans_is_the_sum_of_its_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(privacy, "gaussian", np.zeros)
    size = 300_001  # more than two spans
    sent = {"w": np.zeros(size, np.float32)}
    change = np.linspace(-1, 1, size, dtype=np.float32)
    updates = [
        Update(client=each, num_examples=1, values={"weights": {"w": change}}, sent={GLOBAL: sent})
        for each in (ALICE, BOB)
    ]

    found = private_update(updates, {"w": (size,)}, clip=1000.0, noise=1.0, goal=2).values["weights"]["w"]

    np.testing.assert_allclose(found, change, atol=1e-4)


def test_clients_of_a_private_task_send_weights_alone_and_keep_their_own_model() -> None:
    plan = once("ditto").phase.plan

    assert not plan.evaluations
    assert not plan.statistics
    assert [upload.name for upload in plan.uploads] == ["weights"]
    assert [keep.state for keep in plan.keeps] == ["personal"]
