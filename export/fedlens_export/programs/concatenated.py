"""Bundles in which one classifier stands on several frozen extractors side by side, as FedConcat ends.

The extractors are downloaded, and are those of the ordinary bundle of the same model; only the classifier trains. Its
rows are the extractors' outputs, made by `extract` once a photo, in the order of the extractors; zeros for absent ones.
"""

from collections import OrderedDict

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from fedlens_export.errors import NotExportable
from fedlens_export.network import Network, Tensors
from fedlens_export.programs.steps import Arguments, ProgramSource, slots_of
from fedlens_proto.v1 import blob_pb2
from fedlens_proto.v1 import manifest_pb2 as pb

CLASSIFIER = "classifier"


def extract(network: Network, batch: int) -> ProgramSource:
    """What the classifier of a network is given, float32 [batch, d], in evaluation mode; the extractor is an input.

    Raises:
        NotExportable: The network is not an extractor followed by an FC layer.
    """
    _check(network)
    tensors = _extractor(network)
    rows = pb.Slot(kind=pb.SLOT_KIND_INPUT, dtype=blob_pb2.DTYPE_FLOAT32, shape=(batch, *network.input_shape))
    inputs = (*slots_of(pb.SLOT_KIND_EXTRACTOR, tensors), rows)

    def function(*given: Tensor) -> tuple[Tensor, ...]:
        arguments = Arguments(inputs, given)
        return (_before_classifier(network, arguments.named(pb.SLOT_KIND_EXTRACTOR), arguments.one(rows.kind)),)

    width = _classifier(network).in_features
    output = pb.Slot(kind=pb.SLOT_KIND_FEATURES, dtype=blob_pb2.DTYPE_FLOAT32, shape=(batch, width))
    return ProgramSource("extract", inputs, (output,), function)


def classifier(network: Network, extractors: int, seed: int) -> Network:
    """A new classifier on the outputs of so many extractors, with weights drawn from `seed`."""
    old = _classifier(network)
    width = extractors * old.in_features
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        new = nn.Linear(width, old.out_features, bias=old.bias is not None)
    return Network(nn.Sequential(OrderedDict({CLASSIFIER: new})), (width,))


class _Reached(Exception):
    """Carries what a classifier was called with out of the module that called it."""

    def __init__(self, features: Tensor) -> None:
        super().__init__()
        self.features = features


def _before_classifier(network: Network, tensors: Tensors, rows: Tensor) -> Tensor:
    def stop(_layer: nn.Module, given: tuple[Tensor, ...]) -> None:
        raise _Reached(given[0])

    hook = _classifier(network).register_forward_pre_hook(stop)
    try:
        network(tensors, {}, rows, training=False)
    except _Reached as reached:
        return reached.features
    finally:
        hook.remove()
    raise NotExportable("the model does not call its last FC layer, so it has no classifier to concatenate for")


def _check(network: Network) -> None:
    layer, extractor = _classifier(network), _extractor(network)
    if not extractor:
        raise NotExportable(
            "the classifier stands alone, so there is no extractor to concatenate; a head with one is `hidden`"
        )
    rows = torch.rand((2, *network.input_shape), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        features = _before_classifier(network, extractor, rows)
        logits, _ = network(network.weights, network.buffers, rows, training=False)
    if features.ndim != 2 or not torch.equal(logits, linear(features, layer.weight, layer.bias)):
        raise NotExportable("the model does more with photos after its last FC layer, so it cannot be concatenated")


def _classifier(network: Network) -> nn.Linear:
    return [module for module in network.module.modules() if isinstance(module, nn.Linear)][-1]


def _extractor(network: Network) -> Tensors:
    tensors = {**network.weights, **network.buffers}
    return {t.name: tensors[t.name] for t in network.describe() if t.role == pb.TENSOR_ROLE_EXTRACTOR}
