"""The programs `step`, `predict` and `embed`: functions over a flat list of tensors, each described by a slot."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedlens_export.errors import NotExportable
from fedlens_export.hyper import ROLES, Hyper
from fedlens_export.network import (
    COUNTER,
    DTYPES,
    PRESENT,
    Network,
    Normalisation,
    References,
    Tensors,
    check_dtype,
    plain,
)
from fedlens_export.objectives.objective import ALL, Batch, Objective, Reference, Sizes, Train, without_padding
from fedlens_export.programs import optimisers
from fedlens_export.programs.optimisers import Optimiser
from fedlens_proto.v1 import blob_pb2
from fedlens_proto.v1 import manifest_pb2 as pb

_ROLE_NAMES = {pb.TENSOR_ROLE_EXTRACTOR: "extractor", pb.TENSOR_ROLE_CLASSIFIER: "classifier"}
_KIND_NAMES = {pb.TensorKind.Value(f"TENSOR_KIND_{kind.upper()}"): kind for kind in ALL}
_SCALAR = torch.zeros(())


@dataclass(frozen=True)
class ProgramSource:
    """A program before it is lowered.

    Attributes:
        name: As in a manifest.
        inputs: In calling order.
        outputs: In the order of the returned tuple.
        function: From tensors to a tuple of tensors, in those orders; it modifies none of its inputs.
        makes: As in a manifest.
        optional: References that may be unbound.
        objective: Name of the objective; empty: the program does not train.
        optimiser: Name of the optimiser; empty: the program does not train.
    """

    name: str
    inputs: tuple[pb.Slot, ...]
    outputs: tuple[pb.Slot, ...]
    function: Callable[..., tuple[Tensor, ...]]
    makes: str = ""
    optional: tuple[str, ...] = ()
    objective: str = ""
    optimiser: str = ""


class Arguments:
    """Flat arguments, by kind and name of their slots."""

    def __init__(self, slots: Sequence[pb.Slot], tensors: Sequence[Tensor]) -> None:
        self._found = {(slot.kind, slot.name): tensor for slot, tensor in zip(slots, tensors, strict=True)}

    def one(self, kind: pb.SlotKind) -> Tensor:
        """The tensor of a slot without a name."""
        return self._found[kind, ""]

    def named(self, kind: pb.SlotKind) -> Tensors:
        """The tensors of all slots of a kind, by name."""
        return {name: tensor for (k, name), tensor in self._found.items() if k == kind}

    def references(self) -> References:
        """The tensors of all references, with their rows of a public set, and the presence of optional ones."""
        found: dict[str, Tensors] = {PRESENT: self.named(pb.SLOT_KIND_PRESENT)}
        for kind in (pb.SLOT_KIND_REFERENCE, pb.SLOT_KIND_TARGET):
            for key, tensor in self.named(kind).items():
                reference, _, name = key.partition("/")
                found.setdefault(reference, {})[name] = tensor
        return found


def trains(
    network: Network, objective: Objective, optimiser: Optimiser, batch: int, classes: int, views: int
) -> list[ProgramSource]:
    """`step`, and every further program with which the objective trains."""
    first = step(network, objective, optimiser, batch, classes, views)
    further = [
        step(
            network,
            train.objective,
            _optimiser(train, optimiser),
            max(1, batch // train.divisor),
            classes,
            # Public rows are not augmented.
            0 if any(reference.of_rows for reference in train.objective.references) else views,
            train.name,
        )
        for train in objective.trains
    ]
    return [first, *further]


def hyper(objective: Objective, optimiser: Optimiser) -> dict[str, Hyper]:
    """Every hyper-parameter of the programs in `trains`, by name.

    Raises:
        NotExportable: Two of one program have the same name, or two of different programs differ in all but the name.
    """
    further = [(_optimiser(train, optimiser), train.objective) for train in objective.trains]
    found: dict[str, Hyper] = {}
    for one, other in [(optimiser, objective), *further]:
        own = set[str]()
        for h in (*one.hyper, *other.hyper):
            if h.name in own or found.setdefault(h.name, h) != h:
                raise NotExportable(
                    f"objective {objective.name!r} has a hyper-parameter {h.name!r}, which another part of its "
                    "programs has too; give it another name"
                )
            own.add(h.name)
    return found


def _optimiser(train: Train, optimiser: Optimiser) -> Optimiser:
    return optimiser if train.rate is None else optimisers.plain(train.rate)


def step(
    network: Network,
    objective: Objective,
    optimiser: Optimiser,
    batch: int,
    classes: int,
    views: int | None = None,
    name: str = "step",
) -> ProgramSource:
    """One local step: gradients by `objective`, then `optimiser`.

    `views` of each photo are its input, by default as many as the objective compares. An objective that compares none
    takes one view as the photo.

    BatchNorm statistics are outputs of kind weight, like all exchangeable tensors; a learning rate of 0 for the
    extractor freezes them too.
    """
    roles = {tensor.name: _ROLE_NAMES[tensor.role] for tensor in network.describe()}
    weights, buffers = network.weights, network.buffers
    moments = {f"{moment}/{name}": tensor for moment in optimiser.moments for name, tensor in weights.items()}
    views = objective.views if views is None else views
    exchanged = slots_of(pb.SLOT_KIND_WEIGHT, {**weights, **buffers})
    state = [
        *slots_of(pb.SLOT_KIND_OPTIMISER, moments),
        *slots_of(pb.SLOT_KIND_COUNTER, dict.fromkeys(ROLES, _SCALAR) if optimiser.counts else {}),
    ]
    compared = [slot for reference in objective.references for slot in reference_slots(network, reference, batch)]
    uniforms = [float_slot(pb.SLOT_KIND_UNIFORM, (batch, objective.uniforms))] if objective.uniforms else []
    inputs = (
        *exchanged,
        *state,
        *sorted(compared, key=lambda slot: (slot.kind, slot.name)),
        *row_slots(network, batch, with_labels=True, views=views),
        *uniforms,
        *(float_slot(pb.SLOT_KIND_HYPER, name=h.name) for h in (*optimiser.hyper, *objective.hyper)),
    )
    outputs = (
        *exchanged,
        *state,
        float_slot(pb.SLOT_KIND_LOSS),
        float_slot(pb.SLOT_KIND_LOGITS, (batch, classes)),
    )

    def function(*tensors: Tensor) -> tuple[Tensor, ...]:
        given = Arguments(inputs, tensors)
        current = given.named(pb.SLOT_KIND_WEIGHT)
        trained = {name: current[name] for name in weights}
        statistics = {name: current[name] for name in buffers}
        scalars = given.named(pb.SLOT_KIND_HYPER)
        rows = given.one(pb.SLOT_KIND_INPUT)
        if views and not objective.views:
            rows = rows[:, 0]
        outcome = objective.gradients(
            _Forward(network, statistics),
            trained,
            Batch(
                rows,
                given.one(pb.SLOT_KIND_LABEL),
                given.one(pb.SLOT_KIND_MASK),
                given.one(pb.SLOT_KIND_UNIFORM) if uniforms else None,
            ),
            given.references(),
            scalars,
        )
        new_weights, new_moments, steps = optimiser.step(
            trained,
            outcome.gradients,
            given.named(pb.SLOT_KIND_OPTIMISER),
            given.named(pb.SLOT_KIND_COUNTER),
            roles,
            scalars,
        )
        new_buffers = {
            name: torch.where(optimiser.is_on(scalars, roles[name]) > 0, after, statistics[name])
            for name, after in outcome.buffers.items()
        }
        results = {
            pb.SLOT_KIND_WEIGHT: {**new_weights, **new_buffers},
            pb.SLOT_KIND_OPTIMISER: new_moments,
            pb.SLOT_KIND_COUNTER: steps,
            pb.SLOT_KIND_LOSS: {"": outcome.loss},
            pb.SLOT_KIND_LOGITS: {"": outcome.logits},
        }
        return tuple(results[slot.kind][slot.name] for slot in outputs)

    return ProgramSource(
        name,
        inputs,
        outputs,
        function,
        optional=tuple(reference.name for reference in objective.references if reference.optional),
        objective=objective.name,
        optimiser=optimiser.name,
    )


def reference_slots(network: Network, reference: Reference, batch: int = 0) -> list[pb.Slot]:
    """The slots of a reference's tensors, sorted by name, and of its presence; `batch` is for tables of rows."""
    if reference.table:
        kind = pb.SLOT_KIND_TARGET if reference.of_rows else pb.SLOT_KIND_REFERENCE
        rows = (batch,) if reference.of_rows else ()
        sizes = Sizes(network.classifier.out_features, network.classifier.in_features)
        shapes = {name: (*rows, *shape(sizes)) for name, shape in sorted(reference.table.items())}
        tensors = [float_slot(kind, shape, f"{reference.name}/{name}") for name, shape in shapes.items()]
    else:
        named = {**network.weights, **network.buffers}
        chosen = [t.name for t in network.describe() if _covers(reference, t)]
        tensors = slots_of(pb.SLOT_KIND_REFERENCE, {f"{reference.name}/{name}": named[name] for name in chosen})
    return [*tensors, *([float_slot(pb.SLOT_KIND_PRESENT, name=reference.name)] if reference.optional else [])]


def _covers(reference: Reference, tensor: pb.ExchangeableTensor) -> bool:
    return _ROLE_NAMES[tensor.role] in reference.roles and _KIND_NAMES[tensor.kind] in reference.kinds


@dataclass(frozen=True)
class _Forward:
    """A `Forward`: the network in training with these buffers."""

    network: Network
    buffers: Tensors

    def __call__(self, trained: Tensors, rows: Tensor) -> tuple[Tensor, Tensors]:
        return self.network(trained, self.buffers, rows, training=True)

    def with_features(self, trained: Tensors, rows: Tensor) -> tuple[Tensor, Tensor, Tensors]:
        return self.network.with_features(trained, self.buffers, rows, training=True)

    def frozen_features(self, reference: Tensors, rows: Tensor) -> Tensor:
        features, _, _ = self.network.with_features(reference, {}, rows, training=False)
        return features

    def classify(self, trained: Tensors, features: Tensor) -> Tensor:
        return self.network.classify(trained, features)


def predict(network: Network, batch: int, classes: int) -> ProgramSource:
    """Logits of a batch in evaluation mode; a row of padding counts as a row of zeros."""
    weights, buffers = network.weights, network.buffers
    inputs = (
        *slots_of(pb.SLOT_KIND_WEIGHT, {**weights, **buffers}),
        *row_slots(network, batch, with_labels=False),
    )

    def function(*tensors: Tensor) -> tuple[Tensor, ...]:
        given = Arguments(inputs, tensors)
        exchanged = given.named(pb.SLOT_KIND_WEIGHT)
        rows = without_padding(given.one(pb.SLOT_KIND_INPUT), given.one(pb.SLOT_KIND_MASK))
        logits, _ = network(
            {name: exchanged[name] for name in weights},
            {name: exchanged[name] for name in buffers},
            rows,
            training=False,
        )
        return (logits,)

    return ProgramSource("predict", inputs, (float_slot(pb.SLOT_KIND_LOGITS, (batch, classes)),), function)


def embed(backbone: nn.Module, normalisation: Normalisation, photo_shape: tuple[int, int, int]) -> ProgramSource:
    """Features of one photo by a backbone in evaluation mode, whose tensors are inputs."""
    backbone.eval()
    frozen = frozen_tensors(backbone)
    inputs = (*slots_of(pb.SLOT_KIND_FROZEN, frozen), float_slot(pb.SLOT_KIND_INPUT, (1, *photo_shape)))
    features = feature_count(backbone, photo_shape)

    def function(*tensors: Tensor) -> tuple[Tensor, ...]:
        given = Arguments(inputs, tensors)
        rows = normalisation(given.one(pb.SLOT_KIND_INPUT))
        found: Tensor = functional_call(backbone, given.named(pb.SLOT_KIND_FROZEN), (rows,))
        return (found,)

    return ProgramSource("embed", inputs, (float_slot(pb.SLOT_KIND_FEATURES, (1, features)),), function)


def frozen_tensors(backbone: nn.Module) -> Tensors:
    """Inputs of `embed`: a backbone's parameters and buffers, but not BatchNorm's counters, which only training uses.

    Raises:
        NotExportable: One has a dtype that no file of tensors has.
    """
    used = plain(
        each for each in chain(backbone.named_parameters(), backbone.named_buffers()) if not each[0].endswith(COUNTER)
    )
    for name, tensor in used.items():
        check_dtype(name, tensor)
    return used


def feature_count(backbone: nn.Module, photo_shape: tuple[int, int, int]) -> int:
    """Number of features that the backbone gives for a photo.

    Raises:
        NotExportable: It gives something else.
    """
    with torch.no_grad():
        found = backbone.eval()(torch.zeros(1, *photo_shape))
    if not isinstance(found, Tensor) or found.ndim != 2:
        what = f"{list(found.shape)}" if isinstance(found, Tensor) else f"a {type(found).__name__}"
        raise NotExportable(f"the backbone gives {what} for a photo; features must be one tensor, [1, F]")
    return int(found.shape[1])


def slots_of(kind: pb.SlotKind, tensors: Mapping[str, Tensor]) -> list[pb.Slot]:
    """A slot for each tensor, sorted by name."""
    return [
        pb.Slot(kind=kind, name=name, dtype=DTYPES[tensor.dtype], shape=tensor.shape)
        for name, tensor in sorted(tensors.items())
    ]


def float_slot(kind: pb.SlotKind, shape: Sequence[int] = (), name: str = "") -> pb.Slot:
    """A slot for a float32 tensor."""
    return pb.Slot(kind=kind, name=name, dtype=blob_pb2.DTYPE_FLOAT32, shape=shape)


def row_slots(network: Network, batch: int, *, with_labels: bool, views: int = 0) -> list[pb.Slot]:
    """The slots of a batch: its input, its labels if they are taken, and its mask."""
    shape = (batch, views, *network.input_shape) if views else (batch, *network.input_shape)
    label = pb.Slot(kind=pb.SLOT_KIND_LABEL, dtype=blob_pb2.DTYPE_INT64, shape=(batch,))
    return [
        float_slot(pb.SLOT_KIND_INPUT, shape),
        *([label] if with_labels else []),
        float_slot(pb.SLOT_KIND_MASK, (batch,)),
    ]
