"""The models that clients were sent, as a method sees them: with all that encoding has lost."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from fedlens_proto.blob import Array
from fedlens_server.methods import METHODS, fedns
from fedlens_server.planning.method import Method, MethodDefinition, Phase, State, TaskPlan, Tools, Update
from tests.server.fakes import ALICE, BOB, Bench
from tests.server.networks import network, weights

WIDTH = 100  # so long that a difference as int8 is shorter than the tensors, and is offered
GREAT_AND_SMALL = np.array([[127.0, 0.4] + [0.0] * (WIDTH - 2)] * 2, np.float32)


def convolve_to(bench: Bench, alice: Array, bob: Array) -> None:
    """A round after which the clients' convolutions are these, and all else is 0."""
    for client, conv in ((ALICE, alice), (BOB, bob)):
        tensors = {**weights(0.0, width=WIDTH), "conv.weight": conv}
        bench.upload(client, tensors, class_counts=[5, 5])
    bench.advance()


@pytest.mark.parametrize(
    ("codec", "difference"), [("f32", False), ("f16", False), ("int8", False), ("int8", True), ("f32", True)]
)
def test_fedns_takes_movements_from_the_model_as_clients_decoded_it(bench: Bench, codec: str, difference: bool) -> None:
    bench.start(network(WIDTH), method="fedns", download_codec=codec, download_difference=difference)
    convolve_to(bench, GREAT_AND_SMALL, GREAT_AND_SMALL)
    decoded = np.array(bench.tensors(bench.assignment(ALICE))["conv.weight"])
    steps = np.eye(1, WIDTH, WIDTH - 1, dtype=np.float32)  # 1 for the last element of each node

    convolve_to(bench, decoded + 3 * steps, decoded + 6 * steps)

    # One element of n moves by m: Var = m^2 (n - 1) / n^2, so 3^2 : 6^2 = 1 : 4 and shares 0.2 and 0.8:
    # 0.2 * 3 + 0.8 * 6 = 5.4. In int8 127 makes the scale 1 and 0.4 arrives as 0; taken from the state, where it is
    # 0.4, both would seem to have moved by -0.4 as well, and the shares would be others.
    assert decoded[0, 1] == {"f32": np.float32(0.4), "f16": np.float16(0.4), "int8": 0.0}[codec]
    np.testing.assert_allclose(bench.model()["conv.weight"][:, -1], 5.4, rtol=1e-6)


def test_what_was_sent_alike_to_all_is_held_once(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Update] = []

    def watched(task: TaskPlan) -> Method:
        method = fedns.for_task(task)

        def aggregate(phase: Phase, state: State, updates: Sequence[Update], tools: Tools) -> State:
            seen.extend(updates)
            return method.aggregate(phase, state, updates, tools)

        return replace(method, aggregate=aggregate)

    monkeypatch.setitem(METHODS, "fedns", MethodDefinition(watched))
    bench.start(network(WIDTH), method="fedns", download_codec="int8")

    convolve_to(bench, GREAT_AND_SMALL, GREAT_AND_SMALL)

    alices, bobs = seen
    assert list(alices.sent) == ["global"]
    assert alices.sent["global"] is bobs.sent["global"]
