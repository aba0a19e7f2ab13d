"""A model as a pure function of its tensors, and the description of these tensors."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from fedlens_export.errors import NotExportable
from fedlens_export.models.classified import FeatureModel
from fedlens_proto.v1 import blob_pb2
from fedlens_proto.v1 import manifest_pb2 as pb

Tensors = dict[str, Tensor]
References = Mapping[str, Tensors]
"""Tensors that an objective compares with, by name of reference and of tensor. Under `PRESENT`, by name of each
optional reference, a scalar: 1 if it is there, else 0."""
PRESENT = ""
COUNTER = "num_batches_tracked"
"""Name of the buffer in which a BatchNorm layer counts batches."""
DTYPES = {torch.float32: blob_pb2.DTYPE_FLOAT32, torch.int64: blob_pb2.DTYPE_INT64}


@dataclass(frozen=True)
class Normalisation:
    """Normalisation of photos in 0..1: `(x - mean) / std` for red, green and blue."""

    mean: tuple[float, float, float]
    std: tuple[float, float, float]

    def __call__(self, photos: Tensor) -> Tensor:
        """Normalise photos, float32 [N, 3, H, W]."""
        # Plain numbers, because a tensor would be a constant inside the program.
        if len(set(self.mean)) == len(set(self.std)) == 1:
            return (photos - self.mean[0]) * (1 / self.std[0])
        channels = [
            (photos[:, i] - mean) * (1 / std) for i, (mean, std) in enumerate(zip(self.mean, self.std, strict=True))
        ]
        return torch.stack(channels, 1)


IMAGENET = Normalisation(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
"""The normalisation that torchvision's ImageNet weights were trained with."""

CENTRED = Normalisation(mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25))
"""For the small CNNs: about zero mean and unit variance for everyday photos; 0..1 becomes -2..2."""


@dataclass(frozen=True)
class Network:
    """A module with the normalisation of its inputs.

    Attributes:
        module: From a batch to logits or features.
        input_shape: Shape of one row, without the batch.
        normalisation: None for a head, since features are not normalised.
    """

    module: nn.Module
    input_shape: tuple[int, ...]
    normalisation: Normalisation | None = None

    @property
    def weights(self) -> Tensors:
        """The parameters, which gradients train, sorted by name."""
        return plain(self.module.named_parameters())

    @property
    def buffers(self) -> Tensors:
        """The buffers, which gradients do not train, sorted by name."""
        return plain(self.module.named_buffers())

    @property
    def has_batch_norm(self) -> bool:
        """True if a row's result depends on the other rows of its batch while training."""
        return any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in self.module.modules())

    @property
    def classifier(self) -> nn.Linear:
        """The last FC layer.

        Raises:
            NotExportable: There is none.
        """
        return self._classifier()[1]

    def __call__(self, weights: Tensors, buffers: Tensors, inputs: Tensor, *, training: bool) -> tuple[Tensor, Tensors]:
        """The module's output for these tensors, and the new buffers; no argument is modified."""
        return self._called(weights, buffers, inputs, training)

    def with_features(
        self, weights: Tensors, buffers: Tensors, inputs: Tensor, *, training: bool
    ) -> tuple[Tensor, Tensor, Tensors]:
        """The classifier's inputs before their ReLU, float32 [N, F], the output, and the new buffers.

        Raises:
            NotExportable: The module is no `FeatureModel`.
        """
        self.check_features()
        (features, logits), after = self._called(weights, buffers, inputs, training, with_features=True)
        return features, logits, after

    def check_features(self) -> None:
        """Check that the module returns its classifier's inputs.

        Raises:
            NotExportable: It does not.
        """
        if not isinstance(self.module, FeatureModel):
            raise NotExportable(
                f"features are compared or summed, and {type(self.module).__name__} does not return them; take a model "
                "that does, such as lenet5, small_plain or resnet18_whole, a backbone with head "
                "'hidden', or in code of your own a Classified(extractor, classifier)"
            )

    def before_classifier(self, tensors: Tensors, inputs: Tensor) -> Tensor:
        """The input of the last FC layer in evaluation mode, without a call of that layer.

        Args:
            tensors: Those of all layers before it.
            inputs: float32 [N, *input_shape].

        Raises:
            NotExportable: The module does not call its last FC layer.
        """

        def stop(_layer: nn.Module, given: tuple[Tensor, ...]) -> None:
            raise _Reached(given[0])

        hook = self.classifier.register_forward_pre_hook(stop)
        try:
            self(tensors, {}, inputs, training=False)
        except _Reached as reached:
            features: Tensor = reached.args[0]
            return features
        finally:
            hook.remove()
        raise NotExportable(f"the model does not call {self._classifier()[0]!r}, its last FC layer")

    def check_logits(self, classes: int) -> None:
        """Check that the module gives logits, by its last FC layer.

        Raises:
            NotExportable: It fails, gives something else, or ends in another operation.
        """
        rows = torch.rand((2, *self.input_shape), generator=torch.Generator().manual_seed(0))
        tensors = {**self.weights, **self.buffers}
        with torch.no_grad():
            try:
                logits, _ = self(tensors, {}, rows, training=False)
            except Exception as error:  # whatever a foreign model raises
                raise NotExportable(f"the model fails with its input, float32{list(rows.shape)}: {error}") from error
            check_logits(logits, classes)
            features = self.before_classifier(tensors, rows)
            name, layer = self._classifier()
            if features.ndim != 2 or not torch.equal(logits, functional.linear(features, layer.weight, layer.bias)):
                raise NotExportable(
                    f"the logits are not the output of {name!r}, the FC layer that the model has last; it must end in "
                    "that layer, its classifier: create the classifier after all other layers, and apply nothing to "
                    "its output"
                )

    def classify(self, weights: Tensors, features: Tensor) -> Tensor:
        """Logits of the classifier alone for its inputs, float32 [N, F], after their ReLU.

        Raises:
            NotExportable: The module is no `FeatureModel`.
        """
        self.check_features()
        name, _ = self._classifier()
        found: Tensor = functional.linear(features, weights[f"{name}.weight"], weights.get(f"{name}.bias"))
        return found

    def _called(
        self, weights: Tensors, buffers: Tensors, inputs: Tensor, training: bool, **options: bool
    ) -> tuple[Any, Tensors]:
        self.module.train(training)
        # In training BatchNorm writes into its buffers, which no traced operator shows.
        after = {name: tensor.clone() for name, tensor in buffers.items()} if training else buffers
        if self.normalisation is not None:
            inputs = self.normalisation(inputs)
        return functional_call(self.module, {**weights, **after}, (inputs,), options), after

    def describe(self) -> list[pb.ExchangeableTensor]:
        """Describe each tensor by shape, kind and role, sorted by name; the classifier is the last FC layer.

        Raises:
            NotExportable: There is no FC layer, a layer or dtype that cannot be exchanged, or layers share a tensor.
        """
        classifier, _ = self._classifier()
        described = [
            pb.ExchangeableTensor(
                name=name,
                dtype=check_dtype(name, tensor),
                shape=tensor.shape,
                kind=kind,
                role=pb.TENSOR_ROLE_CLASSIFIER if owner == classifier else pb.TENSOR_ROLE_EXTRACTOR,
            )
            for owner, name, tensor, kind in _leaves(self.module)
        ]
        once = {**self.weights, **self.buffers}
        if again := [tensor.name for tensor in described if tensor.name not in once]:
            raise NotExportable(f"{again[0]!r} is also a tensor of another layer; give each layer its own")
        return sorted(described, key=lambda tensor: tensor.name)

    def _classifier(self) -> tuple[str, nn.Linear]:
        linears = [(name, module) for name, module in self.module.named_modules() if isinstance(module, nn.Linear)]
        if not linears:
            raise NotExportable("the model has no FC layer (nn.Linear), so it has no classifier")
        return linears[-1]


class _Reached(Exception):
    """Ends a call of the module; its argument is the classifier's input."""


def check_logits(found: Any, classes: int) -> None:
    """Check the shape of what a model gives for two rows.

    Raises:
        NotExportable: It is no tensor [2, classes].
    """
    if not isinstance(found, Tensor):
        raise NotExportable(
            f"the model gives a {type(found).__name__} in evaluation mode; it must give one tensor, the logits"
        )
    if tuple(found.shape) != (2, classes):
        raise NotExportable(
            f"the model gives {list(found.shape)} for two rows; for {classes} classes it must be [2, {classes}]. "
            "A function that makes a model receives their number as its argument `classes`"
        )


def plain(named: Iterable[tuple[str, Tensor]]) -> Tensors:
    """Tensors sorted by name, laid out as a file has them."""
    return {name: tensor.detach().contiguous() for name, tensor in sorted(named, key=lambda each: each[0])}


def _leaves(module: nn.Module) -> Iterator[tuple[str, str, Tensor, pb.TensorKind]]:
    for owner, layer in module.named_modules():
        start = f"{owner}." if owner else ""
        for name, parameter in layer.named_parameters(recurse=False):
            yield owner, start + name, parameter, _kind(owner, layer)
        for name, buffer in layer.named_buffers(recurse=False):
            yield owner, start + name, buffer, pb.TENSOR_KIND_BUFFER


def _kind(owner: str, layer: nn.Module) -> pb.TensorKind:
    if isinstance(layer, nn.Linear):
        return pb.TENSOR_KIND_LINEAR
    if isinstance(layer, nn.Conv2d):
        return pb.TENSOR_KIND_CONV
    if isinstance(layer, nn.modules.batchnorm._BatchNorm):
        return pb.TENSOR_KIND_NORM
    where = f"layer {owner!r}" if owner else "the model itself"
    raise NotExportable(
        f"{where} ({type(layer).__name__}) has weights; only FC, Conv2d and BatchNorm layers can train and travel: "
        "replace it, leave it out, or freeze it in a backbone (--head)"
    )


def check_dtype(name: str, tensor: Tensor) -> blob_pb2.Dtype:
    """The dtype of a tensor in files.

    Raises:
        NotExportable: They have none for it.
    """
    if tensor.dtype not in DTYPES:
        raise NotExportable(f"tensor {name!r} is {tensor.dtype}; float32 and int64 can be stored: convert it")
    return DTYPES[tensor.dtype]
