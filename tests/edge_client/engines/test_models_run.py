"""Each model's step: the program against the model, and run flat against torch's own way of running the program."""

import pytest
import torch

from fedlens_edge_client.engines.flat import flat_function
from fedlens_export import objectives
from fedlens_export.models import paper_models, whole_models
from fedlens_export.network import CENTRED, Network
from fedlens_export.programs import lowering, optimisers, parity, steps
from fedlens_proto.programs import pt2_loading
from fedlens_proto.v1 import manifest_pb2 as pb


def _mark(name: str) -> pytest.MarkDecorator:
    return pytest.mark.slow if name == "small_residual" else pytest.mark.long


@pytest.mark.parametrize("name", [pytest.param(name, marks=_mark(name)) for name in whole_models.MODELS[3:]])
@pytest.mark.timeout(600)
def test_a_step_writes_over_nothing_that_is_read_later(name: str) -> None:
    side = max(32, paper_models.LEAST_SIDE.get(name, 0))
    network = Network(whole_models.build(name, 4, side, seed=0), (3, side, side), CENTRED)
    objective, optimiser = objectives.by_name("supcon"), optimisers.by_name("adam")
    hyper = steps.hyper(objective, optimiser)
    source = steps.step(network, objective, optimiser, 4, 4)
    given = parity.examples(source, {**network.weights, **network.buffers}, hyper, seed=3)
    raw = lowering.lower("step", source.function, given)
    parity.compare(source, lowering.load(raw), {**network.weights, **network.buffers}, hyper)
    graph = pt2_loading.load(raw).graph
    steady = (pb.SLOT_KIND_HYPER, pb.SLOT_KIND_REFERENCE)
    replaced = {(slot.kind, slot.name) for slot in source.outputs}
    flat = flat_function(
        graph,
        constant=[i for i, slot in enumerate(source.inputs) if slot.kind in steady],
        donated=[i for i, slot in enumerate(source.inputs) if (slot.kind, slot.name) in replaced],
    )
    with torch.inference_mode():
        expected = lowering.load(raw)(*(tensor.clone() for tensor in given))
        arguments = tuple(tensor.clone() for tensor in given)

        found = flat.run(*arguments, *flat.prepare(*arguments))

    assert all(torch.equal(ours, theirs) for ours, theirs in zip(found, expected, strict=True))
