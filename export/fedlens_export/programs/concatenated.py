"""Bundles whose classifier takes the outputs of several frozen extractors side by side, for FedConcat's last phase.

Clients download the extractors, which have the tensors of the ordinary bundle of the same model; only the classifier
trains. `extract` runs once for each photo and extractor. A row of the classifier has the outputs in the order of the
extractors, and zeros for absent ones.
"""

from collections import OrderedDict

import torch
from torch import Tensor, nn

from fedlens_export.errors import NotExportable
from fedlens_export.network import Network, Tensors
from fedlens_export.programs.steps import Arguments, ProgramSource, float_slot, slots_of
from fedlens_proto.v1 import manifest_pb2 as pb

CLASSIFIER = "classifier"


def extract(network: Network, batch: int) -> ProgramSource:
    """The program from an extractor's tensors and rows to the classifier's input, float32 [batch, d], in evaluation.

    Raises:
        NotExportable: The network is a classifier alone.
    """
    tensors = _extractor(network)
    if not tensors:
        raise NotExportable(
            "the model is a classifier alone, so there is no extractor to concatenate; take head `hidden`"
        )
    rows = float_slot(pb.SLOT_KIND_INPUT, (batch, *network.input_shape))
    inputs = (*slots_of(pb.SLOT_KIND_EXTRACTOR, tensors), rows)

    def function(*given: Tensor) -> tuple[Tensor, ...]:
        arguments = Arguments(inputs, given)
        return (network.before_classifier(arguments.named(pb.SLOT_KIND_EXTRACTOR), arguments.one(rows.kind)),)

    output = float_slot(pb.SLOT_KIND_FEATURES, (batch, network.classifier.in_features))
    return ProgramSource("extract", inputs, (output,), function)


def classifier(network: Network, extractors: int, seed: int) -> Network:
    """A new classifier for the outputs of `extractors` extractors, with weights drawn from `seed`."""
    old = network.classifier
    width = extractors * old.in_features
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        new = nn.Linear(width, old.out_features, bias=old.bias is not None)
    return Network(nn.Sequential(OrderedDict({CLASSIFIER: new})), (width,))


def _extractor(network: Network) -> Tensors:
    tensors = {**network.weights, **network.buffers}
    return {t.name: tensors[t.name] for t in network.describe() if t.role == pb.TENSOR_ROLE_EXTRACTOR}
