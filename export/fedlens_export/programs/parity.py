"""Comparison of exported programs with their sources, on seeded inputs."""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from fedlens_export.errors import NotExportable, ParityBroken
from fedlens_export.hyper import Hyper
from fedlens_export.programs import lowering
from fedlens_export.programs.steps import ProgramSource
from fedlens_proto.slots import tensor_of
from fedlens_proto.v1 import blob_pb2
from fedlens_proto.v1 import manifest_pb2 as pb

TOLERANCE = 1e-5
"""Largest allowed difference, relative to the greatest value of the same output (or to 1 if that is larger). A backbone
whose float32 differs more from float64 has another bound, see `ROUNDINGS`."""

ROUNDINGS = 8
"""A program of a backbone may differ by this many times the model's own rounding error: the difference, measured as
`TOLERANCE` says, between its features in float32 and in float64 on the same inputs. Deep, badly conditioned networks
round by more than `TOLERANCE`, and every order of summation rounds differently."""

MOST_ROUNDED = 1e-3
"""Largest difference of a backbone, whatever its rounding error."""

MOST_OF_QUANTISING = 0.5
"""Largest distance of a quantised program from its emulation, as a fraction of its distance from the float backbone."""

EPOCH_BATCHES = 4
"""Batches of the epoch over which `step` is compared; half of the last one is padding, if padding is allowed."""

_SEEDS = (1, 2)
# Whether a sum between two levels falls up or down is chance, so one input says little.
_EMULATION_SEEDS = range(1, 17)
# Adam divides a gradient by its own size. With the usual epsilon, a gradient that is nothing but rounding becomes a
# whole step, and no two implementations agree on it.
_EPOCH_HYPER = {"eps": 1e-3}
_WEIGHT = pb.SLOT_KIND_WEIGHT
_OF_ALL_ROWS = (_WEIGHT, pb.SLOT_KIND_OPTIMISER, pb.SLOT_KIND_LOSS, pb.SLOT_KIND_ACCUMULATOR)
_OF_ROWS = (pb.SLOT_KIND_INPUT, pb.SLOT_KIND_LABEL, pb.SLOT_KIND_TARGET, pb.SLOT_KIND_UNIFORM)
_FED_BACK = (_WEIGHT, pb.SLOT_KIND_OPTIMISER, pb.SLOT_KIND_COUNTER)


def check(source: ProgramSource, known: Mapping[str, Tensor], hyper: Mapping[str, Hyper], *, masked: bool) -> None:
    """Find what is wrong in a program's source, whatever file it is lowered to, on seeded inputs.

    Args:
        source: Source of the program.
        known: Values of weights and frozen tensors, by name.
        hyper: The hyper-parameters of the program, by name.
        masked: What rows contain that the mask leaves out may change nothing but their own results.

    Raises:
        NotExportable: A weight is NaN or infinite, an output has another shape than the source declares, a program that
            trains changes no weight, or padding changes what is not its own.
    """
    for name, value in known.items():
        if not torch.isfinite(value).all():
            raise NotExportable(f"tensor {name!r} of the model holds a NaN or an infinity")
    inputs = [examples(source, known, hyper, seed) for seed in _SEEDS]
    with torch.no_grad():
        for given in inputs:
            _check_outputs(source, given, source.function(*given))
        if masked:
            _check_padding(source, inputs[0])


def compare(
    source: ProgramSource,
    program: lowering.Function,
    known: Mapping[str, Tensor],
    hyper: Mapping[str, Hyper],
    what: str = "",
    *,
    rounds: bool = False,
) -> float:
    """Run a program and its source side by side on seeded inputs.

    Args:
        source: Source of the program.
        program: The loaded program.
        known: Values of weights and frozen tensors, by name.
        hyper: The hyper-parameters of the program, by name.
        what: Name of program and format, for the error; empty: the name in quotes.
        rounds: The program has a whole backbone, so that `ROUNDINGS` applies.

    Returns:
        The largest difference, measured as `TOLERANCE` says.

    Raises:
        ParityBroken: It is larger than allowed, or an output is NaN or infinite.
    """
    worst = 0.0
    for seed in _SEEDS:
        given = examples(source, known, hyper, seed)
        with torch.no_grad():
            found, expected = program(*given), source.function(*given)
        pairs = list(zip(source.outputs, found, expected, strict=True))
        # float64 is slow, so its result is computed only if needed.
        is_near = not rounds or all(_relative(left, right) <= TOLERANCE for _, left, right in pairs)
        allowed = TOLERANCE if is_near else _allowed(source, given, expected)
        for slot, left, right in pairs:
            output = f"in its output {pb.SlotKind.Name(slot.kind)} {slot.name}"
            worst = max(worst, _difference(left, right, what or repr(source.name), output, allowed))
    return worst


def compare_emulation(
    source: ProgramSource,
    program: lowering.Function,
    original: Callable[[Tensor], Tensor],
    known: Mapping[str, Tensor],
    what: str = "",
) -> float:
    """Run a quantised `embed`, its emulation and the float backbone side by side on seeded photos.

    A sum between two levels can fall either way, so no bound for single features is both tight and always satisfied.
    Instead the emulation must reproduce most of the effect of quantising.

    Args:
        source: The emulation.
        program: The loaded quantised program, or the emulation in another format.
        original: The float backbone, from a photo [1, 3, H, W] in 0..1 to features [1, F].
        known: Values of frozen tensors, by name.
        what: As in `compare`.

    Returns:
        The largest difference between program and emulation, measured as `TOLERANCE` says.

    Raises:
        ParityBroken: The difference is above `TOLERANCE` and the distance between program and emulation, in root mean
            square, above `MOST_OF_QUANTISING` of the distance between program and float backbone; or a feature is NaN
            or infinite.
    """
    place = next(i for i, slot in enumerate(source.inputs) if slot.kind == pb.SLOT_KIND_INPUT)
    triples = []
    for seed in _EMULATION_SEEDS:
        given = examples(source, known, {}, seed)
        with torch.no_grad():
            # A runtime may overwrite this result with the next one.
            triples.append((program(*given)[0].clone(), source.function(*given)[0], original(given[place])))
    found, emulated, wanted = (torch.cat(each).double() for each in zip(*triples, strict=True))
    differences = [_relative(left, right) for left, right, _ in triples]
    of_emulation, of_quantising = (found - emulated).norm().item(), (found - wanted).norm().item()
    if not (all(d <= TOLERANCE for d in differences) or of_emulation <= MOST_OF_QUANTISING * of_quantising):
        raise ParityBroken(
            f"program {what or repr(source.name)} differs from its emulation by {of_emulation:.2g} and from the float "
            f"backbone by {of_quantising:.2g} (L2 norm over all features); a ratio of at most {MOST_OF_QUANTISING} is "
            "allowed"
        )
    return max(differences)


def compare_epoch(
    source: ProgramSource,
    program: lowering.Function,
    known: Mapping[str, Tensor],
    hyper: Mapping[str, Hyper],
    what: str = "",
    *,
    masked: bool = True,
) -> float:
    """Train an epoch with a `step` and with its source, on the same rows in the same order; compare the final weights.

    Arguments, result and errors as in `compare`; `masked`: half of the last batch is padding.
    """
    found, expected = (_trained(source, step, known, hyper, masked) for step in (program, source.function))
    differences = [
        _difference(found[name], expected[name], what or repr(source.name), f"in {name} after one epoch")
        for name in expected
    ]
    return max(differences)


def _trained(
    source: ProgramSource,
    step: lowering.Function,
    known: Mapping[str, Tensor],
    hyper: Mapping[str, Hyper],
    masked: bool,
) -> dict[str, Tensor]:
    state: dict[tuple[int, str], Tensor] = {}
    for batch in range(EPOCH_BATCHES):
        given = list(examples(source, known, hyper, seed=batch))
        for place, slot in enumerate(source.inputs):
            if slot.kind in _FED_BACK:
                at_start = known[slot.name] if slot.kind == pb.SLOT_KIND_WEIGHT else torch.zeros_like(given[place])
                given[place] = state.get((slot.kind, slot.name), at_start)
            elif slot.kind == pb.SLOT_KIND_REFERENCE and tensor_of(slot) in known:
                given[place] = known[tensor_of(slot)]
            elif slot.kind == pb.SLOT_KIND_MASK and masked and batch == EPOCH_BATCHES - 1:
                given[place][len(given[place]) // 2 + 1 :] = 0.0
            elif slot.kind == pb.SLOT_KIND_HYPER and slot.name in _EPOCH_HYPER:
                given[place] = torch.tensor(_EPOCH_HYPER[slot.name])
        with torch.no_grad():
            outputs = step(*given)
        state = {(slot.kind, slot.name): output for slot, output in zip(source.outputs, outputs, strict=True)}
    return {name: tensor for (kind, name), tensor in state.items() if kind == pb.SLOT_KIND_WEIGHT}


def _check_outputs(source: ProgramSource, given: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
    shapes, declared = [list(output.shape) for output in outputs], [list(slot.shape) for slot in source.outputs]
    if shapes != declared:
        raise NotExportable(f"program {source.name!r} gives outputs of shapes {shapes}, and declares {declared}")
    before = {slot.name: value for slot, value in zip(source.inputs, given, strict=True) if slot.kind == _WEIGHT}
    after = {slot.name: value for slot, value in zip(source.outputs, outputs, strict=True) if slot.kind == _WEIGHT}
    if source.objective and after and all(torch.equal(before[name], value) for name, value in after.items()):
        raise NotExportable(
            f"program {source.name!r} changes no weight: the gradients of objective {source.objective!r} are zero"
        )


def _check_padding(source: ProgramSource, given: Sequence[Tensor]) -> None:
    """Require that a program over rows gives the same whatever the second half contains, if that is padding."""
    kinds = [slot.kind for slot in source.inputs]
    if pb.SLOT_KIND_MASK not in kinds:
        return
    rows = len(given[kinds.index(pb.SLOT_KIND_MASK)])
    outcomes = []
    for filling in (0, 1):
        filled = [tensor.clone() for tensor in given]
        for kind, tensor in zip(kinds, filled, strict=True):
            if kind == pb.SLOT_KIND_MASK:
                tensor[rows // 2 :] = 0
            elif kind in _OF_ROWS and rows in tensor.shape[:2]:
                tensor.transpose(0, tensor.shape.index(rows))[rows // 2 :] = filling
        outcomes.append(source.function(*filled))
    for slot, left, right in zip(source.outputs, *outcomes, strict=True):
        if slot.kind in _OF_ALL_ROWS and not _relative(left, right) <= TOLERANCE:
            output = f"{pb.SlotKind.Name(slot.kind)} {slot.name}".rstrip()
            raise NotExportable(
                f"what padding contains changes output {output} of program {source.name!r}; leave out the rows whose "
                "mask is 0, as `without_padding` and `masked_mean` do"
            )


def _difference(found: Tensor, expected: Tensor, what: str, where: str, allowed: float = TOLERANCE) -> float:
    difference = _relative(found, expected)
    if not difference <= allowed:
        raise ParityBroken(
            f"program {what} differs from the model by {difference:.2g} {where}; at most {allowed:.2g} is allowed"
        )
    return difference


def _relative(found: Tensor, expected: Tensor) -> float:
    scale = max(1.0, expected.abs().max().item())
    difference: float = (found.double() - expected.double()).abs().max().item() / scale
    return difference


def _allowed(source: ProgramSource, given: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """The bound for a backbone: a multiple of its own rounding error."""
    doubled = [tensor.double() if tensor.is_floating_point() else tensor for tensor in given]
    try:
        with torch.no_grad():
            exact = source.function(*doubled)
    except RuntimeError:
        # An own model that creates float32 tensors does not run in float64.
        return TOLERANCE
    rounding = max(_relative(left, right) for left, right in zip(expected, exact, strict=True))
    return max(TOLERANCE, min(ROUNDINGS * rounding, MOST_ROUNDED))


def examples(
    source: ProgramSource, known: Mapping[str, Tensor], hyper: Mapping[str, Hyper], seed: int
) -> tuple[Tensor, ...]:
    """Arguments of a program; the same seed gives the same arguments."""
    generator = torch.Generator().manual_seed(seed)
    classes = next((slot.shape[1] for slot in source.outputs if slot.kind == pb.SLOT_KIND_LOGITS), 2)
    return tuple(_example(slot, known, hyper, int(classes), generator) for slot in source.inputs)


def _example(
    slot: pb.Slot, known: Mapping[str, Tensor], hyper: Mapping[str, Hyper], classes: int, generator: torch.Generator
) -> Tensor:
    shape = tuple(slot.shape)
    match slot.kind:
        case pb.SLOT_KIND_WEIGHT | pb.SLOT_KIND_FROZEN | pb.SLOT_KIND_EXTRACTOR:
            return known[slot.name].clone()
        case pb.SLOT_KIND_REFERENCE:
            weight = known.get(tensor_of(slot), torch.zeros(shape))
            spread = 0.01 if tensor_of(slot) in known else 1.0
            return weight + (spread * torch.rand(shape, generator=generator)).to(weight.dtype)
        case pb.SLOT_KIND_OPTIMISER:
            # Not near zero: Adam divides by the root of the second moment, and would divide rounding by nothing.
            return 5e-4 * (1 + torch.rand(shape, generator=generator))
        case pb.SLOT_KIND_COUNTER:
            return torch.tensor(3.0)
        case pb.SLOT_KIND_HYPER:
            return torch.tensor(hyper[slot.name].default)
        case pb.SLOT_KIND_LABEL:
            return torch.randint(0, classes, shape, generator=generator)
        case pb.SLOT_KIND_MASK | pb.SLOT_KIND_PRESENT:
            return torch.ones(shape)
        case _:
            if slot.dtype != blob_pb2.DTYPE_FLOAT32:
                raise TypeError(f"no example for {slot}")
            return torch.rand(shape, generator=generator)
