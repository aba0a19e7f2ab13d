"""A user's own model: `module:function` makes it, and the names of its FC layers divide it into backbone and head.

The model is run once until the first of these layers is called: what that layer is given are the features, and
everything before is the backbone. From there on the model runs on symbols (`torch.fx`), which record the head; so
nothing but the features can enter it unnoticed.
"""

import importlib
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedlens_export.errors import NotExportable, UnknownChoice, WeightsUnusable
from fedlens_export.models import backbones, own_head
from fedlens_export.network import CENTRED, IMAGENET, Normalisation

NORMALISATIONS = {
    "none": Normalisation(mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0)),
    "imagenet": IMAGENET,
    "centred": CENTRED,
}
"""What can be done to photos in 0..1 before a model gets them, by name; `none` is the default."""

_TOLERANCE = 1e-5
_MOST_LISTED = 8
_COUNTS = ("classes", "num_classes")
_SIDES = ("input_size",)


@dataclass(frozen=True)
class Divided:
    """A model in two.

    Attributes:
        backbone: From photos [N, 3, S, S] to features [N, F]; in evaluation mode.
        head: From features to logits [N, classes], with the layers' own names.
        left_out: Names of the head's dropout layers, which it has no more.
    """

    backbone: nn.Module
    head: nn.Module
    left_out: tuple[str, ...]


def is_own(model: str) -> bool:
    """Whether this names a function that makes a model."""
    return ":" in model


def normalisation(name: str | None) -> Normalisation:
    """What is done to photos first.

    Raises:
        UnknownChoice: There is none of that name.
    """
    if (name or "none") not in NORMALISATIONS:
        raise UnknownChoice(f"normalisation {name!r} is unknown; there are {', '.join(NORMALISATIONS)}")
    return NORMALISATIONS[name or "none"]


def build(model: str, classes: int, side: int, seed: int) -> nn.Module:
    """Import `module`, from the current folder or PYTHONPATH, and call its function; the code in it is trusted.

    Args:
        model: `module:function`; the function may also be a class or a module that is already made.
        classes: Given to a function that has an argument `classes` or `num_classes`.
        side: Of photos in pixels; given to one that has an argument `input_size`.
        seed: Of torch's generator, from which weights are drawn.

    Raises:
        UnknownChoice: There is no such module or function.
        NotExportable: It fails, asks for other arguments, or gives no module of float32 tensors on the CPU.
    """
    module_name, _, attribute = model.partition(":")
    with _current_folder_on_path(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        found = _attribute(_imported(module_name), module_name, attribute)
        made = found if isinstance(found, nn.Module) else _called(model, found, classes, side)
    _check_tensors(model, made)
    return made


def load_weights(model: nn.Module, path: Path, layers: Iterable[str]) -> tuple[str, ...]:
    """Read a state dict of the whole model; its head may be missing or of another shape.

    Args:
        model: Whose weights are replaced.
        path: `torch.save(model.state_dict(), path)`, or safetensors by its suffix.
        layers: The head's.

    Returns:
        Names of the head's tensors that stay as they were made.

    Raises:
        WeightsUnusable: It cannot be read without running code, or names or shapes do not fit; the text names them.
    """
    given, wanted = backbones.read_weights(path), model.state_dict()
    of_head = {name for name in wanted if name.rpartition(".")[0] in set(layers)}
    counters = {name for name in wanted if name.endswith("num_batches_tracked")}
    if unknown := sorted(given.keys() - wanted.keys()):
        raise WeightsUnusable(f"{path.name}: the model has no tensor {unknown[0]!r} ({len(unknown)} are unknown)")
    if missing := sorted(wanted.keys() - given.keys() - counters - of_head):
        raise WeightsUnusable(f"{path.name}: {len(missing)} tensors are missing, the first is {missing[0]!r}")
    kept = {name for name in of_head if name not in given or given[name].shape != wanted[name].shape}
    for name in sorted(given.keys() - kept):
        if given[name].shape != wanted[name].shape:
            shapes = f"{list(given[name].shape)}, not {list(wanted[name].shape)}"
            raise WeightsUnusable(f"{path.name}: {name!r} is {shapes}")
        if not torch.isfinite(given[name]).all():
            raise WeightsUnusable(f"{path.name}: {name!r} holds a NaN or an infinity")
    model.load_state_dict({name: given[name] for name in given.keys() - kept}, strict=False)
    return tuple(sorted(kept))


def head_layers(model: nn.Module, names: str) -> dict[str, nn.Linear]:
    """The FC layers that are meant, by name; a layer that contains others stands for all FC layers in it.

    Args:
        model: That has them.
        names: Separated by commas, as in `fc1,classifier.3`.

    Raises:
        UnknownChoice: There is no layer of a name.
        NotExportable: It is no FC layer.
    """
    modules = dict(model.named_modules())
    linears = {name: module for name, module in modules.items() if isinstance(module, nn.Linear)}
    found: dict[str, nn.Linear] = {}
    for name in (part.strip() for part in names.split(",")):
        if name not in modules or not name:
            raise UnknownChoice(f"the model has no layer {name!r}; its FC layers are {_listed(linears)}")
        inside = {key: layer for key, layer in linears.items() if key == name or key.startswith(f"{name}.")}
        if not inside:
            raise NotExportable(
                f"layer {name!r} is {type(modules[name]).__name__}, and a head is made of FC layers (nn.Linear); "
                f"the model has {_listed(linears)}"
            )
        found.update(inside)
    return found


def divide(model: nn.Module, layers: Mapping[str, nn.Linear], side: int, classes: int) -> Divided:
    """Divide a model before the first of these layers; the model itself becomes the backbone.

    Args:
        model: From photos [N, 3, side, side] to logits [N, classes].
        layers: Of the head, from `head_layers`.
        side: Of photos in pixels.
        classes: How many.

    Raises:
        NotExportable: It cannot be divided there; the text names the layer or operation, and what to do.
    """
    model.eval()
    photos = torch.rand((2, 3, side, side), generator=torch.Generator().manual_seed(0))
    with _NoDropout():
        expected = _run(model, photos)
    _check_logits(expected, classes)
    head = own_head.record(model, layers, photos)
    backbone = _up_to(model, layers)
    with torch.no_grad():
        features = backbone(photos)
        if features.ndim != 2:
            raise NotExportable(
                f"layer {head.first!r} is given {['N', *features.shape[1:]]}; features must be [N, F], so pool or "
                "flatten before it"
            )
        found = head.module(features)
    difference = (found - expected).abs().max().item() / max(1.0, expected.abs().max().item())
    if not difference <= _TOLERANCE:
        raise NotExportable(
            f"divided before layer {head.first!r}, the model gives other logits, by {difference:.2g}; its forward must "
            "not depend on anything but the photos, nor change the features behind the backbone"
        )
    return Divided(backbone, head.module, head.left_out)


def without_dropout(model: nn.Module, side: int) -> tuple[str, ...]:
    """Take the dropout layers out of a model that is trained as a whole; gives their names.

    Raises:
        NotExportable: Its `forward` calls dropout as a function.
    """
    named = [name for name, module in model.named_modules() if isinstance(module, nn.modules.dropout._DropoutNd)]
    for name in named:
        _replace(model, name, nn.Identity())
    kept = [buffer.clone() for buffer in model.buffers()]
    model.train()
    with _NoDropout(), torch.no_grad():
        _run(model, torch.zeros(2, 3, side, side))
        for buffer, before in zip(model.eval().buffers(), kept, strict=True):
            buffer.copy_(before)  # BatchNorm has counted these photos in
    return tuple(named)


class _NoDropout(torch.overrides.TorchFunctionMode):
    """Refuses dropout that is called as a function."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if own_head.is_dropout(func) and own_head.is_on(func, args, kwargs or {}):
            raise NotExportable(own_head.DROPOUT)
        return func(*args, **(kwargs or {}))


class _Entrance(nn.Module):
    """Stands where a layer of the head was: what comes in is told, what goes out means nothing.

    No exception ends the call here, because torch.export loses count of modules that are left by one.
    """

    def __init__(self, width: int, tell: Callable[[Tensor], None]) -> None:
        super().__init__()
        self.width, self.tell = width, tell

    def forward(self, features: Tensor) -> Tensor:
        self.tell(features)
        return features.new_zeros((*features.shape[:-1], self.width))


def _up_to(model: nn.Module, layers: Mapping[str, nn.Linear]) -> nn.Module:
    whole = model.forward
    entered: list[Tensor] = []

    def features(photos: Tensor) -> Tensor:
        entered.clear()
        whole(photos)
        if not entered:
            raise NotExportable("the model calls its head by another way than as its layers, so it cannot be divided")
        first = entered[0]
        entered.clear()
        return first

    for name, layer in layers.items():
        _replace(model, name, _Entrance(layer.out_features, entered.append))
    # On the object, so that its tensors keep their names.
    model.forward = features
    return model


def _replace(model: nn.Module, name: str, new: nn.Module) -> None:
    parent, _, leaf = name.rpartition(".")
    setattr(model.get_submodule(parent), leaf, new)


@contextmanager
def _current_folder_on_path() -> Iterator[None]:
    before = list(sys.path)
    sys.path.insert(0, str(Path.cwd()))
    try:
        yield
    finally:
        sys.path[:] = before


def _imported(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise UnknownChoice(
                f"there is no module {name!r} in the current folder or on PYTHONPATH; --model takes MODULE:FUNCTION"
            ) from error
        raise NotExportable(f"module {name!r} cannot be imported: {error}") from error
    except Exception as error:  # whatever a foreign module raises
        raise NotExportable(f"module {name!r} cannot be imported: {type(error).__name__}: {error}") from error


def _attribute(module: Any, module_name: str, name: str) -> Any:
    found = getattr(module, name, None) if name else None
    if callable(found):
        return found
    own = [
        key
        for key, value in vars(module).items()
        if callable(value) and not key.startswith("_") and getattr(value, "__module__", None) == module_name
    ]
    raise UnknownChoice(f"module {module_name!r} has no function {name!r}; it has {', '.join(own) or 'none'}")


def _called(model: str, function: Callable[..., Any], classes: int, side: int) -> nn.Module:
    known = {**dict.fromkeys(_COUNTS, classes), **dict.fromkeys(_SIDES, side)}
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # some that are written in C tell of none
        parameters = {}.values()
    named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY, p.POSITIONAL_ONLY)]
    if unknown := [p.name for p in named if p.default is p.empty and p.name not in known]:
        raise NotExportable(
            f"{model} asks for {unknown[0]!r}; export gives {', '.join(known)}, so give the others a default"
        )
    try:
        made = function(**{p.name: known[p.name] for p in named if p.name in known})
    except Exception as error:  # whatever a foreign function raises
        place = own_head.place_of(error)
        raise NotExportable(f"{model} failed (at {place}): {type(error).__name__}: {error}") from error
    if isinstance(made, torch.jit.ScriptModule) or not isinstance(made, nn.Module):
        raise NotExportable(f"{model} gives {type(made).__name__}; it must be an nn.Module, not scripted")
    return made


def _check_tensors(model: str, made: nn.Module) -> None:
    for name, tensor in (*made.named_parameters(), *made.named_buffers()):
        fits = tensor.dtype == torch.float32 or not (tensor.is_floating_point() or tensor.is_complex())
        if not fits or tensor.device.type != "cpu":
            raise NotExportable(
                f"{model}: {name!r} is {tensor.dtype} on {tensor.device}; float32 on the CPU is needed, "
                "as model.float().cpu() gives"
            )


def _run(model: nn.Module, photos: Tensor) -> Tensor:
    try:
        with torch.no_grad():
            found: Tensor = model(photos)
    except NotExportable:
        raise
    except Exception as error:  # whatever a foreign model raises
        raise NotExportable(
            f"the model cannot take photos, float32{list(photos.shape)} (at {own_head.place_of(error)}): {error}"
        ) from error
    return found


def _check_logits(found: Any, classes: int) -> None:
    if not isinstance(found, Tensor):
        raise NotExportable(
            f"the model gives a {type(found).__name__} in evaluation mode; it must give one tensor, the logits"
        )
    if tuple(found.shape) != (2, classes):
        raise NotExportable(
            f"the model gives {list(found.shape)} for two photos; for {classes} classes it must be [2, {classes}]. "
            "A function with an argument `classes` is told how many there are"
        )


def _listed(layers: Iterable[str]) -> str:
    names = list(layers)
    # The last ones, which a head is made of.
    return ("..., " if len(names) > _MOST_LISTED else "") + ", ".join(names[-_MOST_LISTED:]) or "none"
