"""Inputs and outputs of programs that derive, and what several of them compute."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from fedlens_export.hyper import Hyper
from fedlens_export.network import Network, Tensors
from fedlens_export.objectives.objective import ALL, Reference, Sizes
from fedlens_export.programs.steps import Arguments, ProgramSource, float_slot, reference_slots, row_slots
from fedlens_proto.v1 import manifest_pb2 as pb


@dataclass(frozen=True)
class Setting:
    """The bundle that a program is for.

    Attributes:
        network: The model.
        batch: Rows of a run.
        classes: Number of classes.
        candidates: Largest number of models that one program compares; 0: none.
    """

    network: Network
    batch: int
    classes: int
    candidates: int = 0

    def logits(self, model: Tensors, rows: Tensor) -> Tensor:
        """Logits of rows in evaluation mode, float32 [B, classes]."""
        found, _ = self.network(*self._divided(model), rows, training=False)
        return found

    def features(self, model: Tensors, rows: Tensor) -> Tensor:
        """Inputs of the classifier, after their ReLU, in evaluation mode, float32 [B, F]."""
        found, _, _ = self.network.with_features(*self._divided(model), rows, training=False)
        return found.relu()

    def _divided(self, model: Tensors) -> tuple[Tensors, Tensors]:
        module = self.network.module
        weights = {name: model[name] for name, _ in module.named_parameters()}
        return weights, {name: model[name] for name, _ in module.named_buffers()}


@dataclass(frozen=True)
class Derivation:
    """A program by name.

    Attributes:
        name: As in a manifest.
        build: Makes the program; it raises `NotExportable` if the model lacks what the program needs.
        hyper: Its scalars.
        over_public: It gives a result for each public row.
    """

    name: str
    build: Callable[[Setting], ProgramSource]
    hyper: tuple[Hyper, ...] = ()
    over_public: bool = False


def program(
    setting: Setting,
    name: str,
    makes: str,
    references: Sequence[Reference],
    outputs: Sequence[pb.Slot],
    compute: Callable[[Arguments], Mapping[str, Tensor]],
    *,
    over_rows: bool = False,
    hyper: Sequence[Hyper] = (),
) -> ProgramSource:
    """A program from its references, scalars and perhaps rows to its outputs by name."""
    given = [slot for reference in references for slot in reference_slots(setting.network, reference)]
    given += [float_slot(pb.SLOT_KIND_HYPER, name=each.name) for each in hyper]
    given += [slot for slot in outputs if slot.kind == pb.SLOT_KIND_ACCUMULATOR]
    if over_rows:
        given += row_slots(setting.network, setting.batch, with_labels=True)
    inputs = tuple(sorted(given, key=lambda slot: (slot.kind, slot.name)))

    def function(*tensors: Tensor) -> tuple[Tensor, ...]:
        found = compute(Arguments(inputs, tensors))
        return tuple(found[slot.name] for slot in outputs)

    optional = tuple(reference.name for reference in references if reference.optional)
    return ProgramSource(name, inputs, tuple(outputs), function, makes, optional)


def model(name: str, *, optional: bool = False) -> Reference:
    """A reference that holds every exchangeable tensor."""
    return Reference(name, kinds=ALL, optional=optional)


def candidates(setting: Setting) -> list[Reference]:
    """The models that a program compares, any of which may be absent."""
    return [model(f"candidate-{k}", optional=True) for k in range(setting.candidates)]


def table(name: str, shapes: Mapping[str, Sequence[int]]) -> Reference:
    """A reference that holds float32 tensors of these shapes."""
    return Reference(name, table={key: partial(_fixed, tuple(shape)) for key, shape in shapes.items()})


def _fixed(shape: tuple[int, ...], _sizes: Sizes) -> tuple[int, ...]:
    return shape


def float_slots(kind: pb.SlotKind, shapes: Mapping[str, Sequence[int]]) -> list[pb.Slot]:
    """A slot for each of these float32 tensors, sorted by name."""
    return [float_slot(kind, shape, name) for name, shape in sorted(shapes.items())]


def least(values: Tensor) -> Tensor:
    """The least over the first dimension; `amin` is no operator of programs."""
    return -torch.amax(-values, 0)


def is_first_least(values: Tensor) -> Tensor:
    """True where a value is the least over the first dimension, in the first place of several that are equal."""
    place = torch.arange(len(values), dtype=torch.float32).reshape(-1, *[1] * (values.dim() - 1))
    first = least(torch.where(values == least(values), place, float(len(values))))
    return place == first
