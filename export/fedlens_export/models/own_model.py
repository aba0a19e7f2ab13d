"""A user's own model: `module:function` makes it, and the names of its FC layers divide it into backbone and head.

The model runs once. The input of the first of these layers are the features, and everything before is the backbone.
From there on the model runs on symbols (`torch.fx`), which record the head; no other input of the head goes unnoticed.
"""

import importlib
import inspect
from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedlens_export.errors import NotExportable, UnknownChoice, check_choice
from fedlens_export.models import own_head, state_dict
from fedlens_export.network import CENTRED, IMAGENET, Normalisation, check_logits
from fedlens_proto import plugins

NORMALISATIONS = {
    "none": Normalisation(mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0)),
    "imagenet": IMAGENET,
    "centred": CENTRED,
}
"""Normalisations of photos in 0..1, by name; `none` is the default."""

_TOLERANCE = 1e-5
_MOST_LISTED = 8


@dataclass(frozen=True)
class Divided:
    """A backbone and a head.

    Attributes:
        backbone: From photos [N, 3, S, S] to features [N, F]; in evaluation mode.
        head: From features to logits [N, classes]; its layers have the names that they had in the model.
        left_out: Names of the dropout layers that were left out of the head.
    """

    backbone: nn.Module
    head: nn.Module
    left_out: tuple[str, ...]


def normalisation(name: str | None) -> Normalisation:
    """A normalisation by name; None is `none`.

    Raises:
        UnknownChoice: There is no normalisation of that name.
    """
    name = name or "none"
    check_choice("normalisation", name, NORMALISATIONS)
    return NORMALISATIONS[name]


def build(model: str, classes: int, side: int, seed: int) -> nn.Module:
    """Import `module`, from the current folder or PYTHONPATH, and call its function; its code is trusted.

    Args:
        model: `module:function`; in place of the function, a class or an `nn.Module`.
        classes: Passed to a function with an argument `classes` or `num_classes`.
        side: Side of photos in pixels; passed to a function with an argument `input_size`.
        seed: Seed of torch's generator, from which weights are drawn.

    Raises:
        UnknownChoice: There is no such module or function.
        NotExportable: The function fails, has other arguments without a default, or gives no module of float32 tensors
            on the CPU.
    """
    module_name, _, attribute = model.partition(":")
    with plugins.current_folder_on_path(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        found = _attribute(_imported(module_name), module_name, attribute)
        # An import, which happens once, may have drawn numbers; and a module's own model is not ours to change.
        torch.manual_seed(seed)
        made = deepcopy(found) if isinstance(found, nn.Module) else _called(model, found, classes, side)
    _check_tensors(model, made)
    return made


def load_weights(model: nn.Module, path: Path, layers: Iterable[str]) -> tuple[str, ...]:
    """Load a state dict of the whole model, in which the head may be missing or have another shape.

    Args:
        model: The model.
        path: From `torch.save(model.state_dict(), path)`, or safetensors by its suffix.
        layers: Names of the head's layers.

    Returns:
        Names of the head's tensors that keep their initial values.

    Raises:
        WeightsUnusable: It cannot be read without running code, or names or shapes do not fit; the text names them.
    """
    of_head = [name for name in model.state_dict() if name.rpartition(".")[0] in set(layers)]
    return state_dict.load_into(model, state_dict.read(path), path.name, of_head)


def head_layers(model: nn.Module, names: str) -> dict[str, nn.Linear]:
    """The named FC layers; the name of a layer that contains others stands for all FC layers in it.

    Args:
        model: The model.
        names: Separated by commas, as in `fc1,classifier.3`.

    Raises:
        UnknownChoice: The model has no layer of that name.
        NotExportable: The layer is no FC layer and contains none.
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
        layers: The head's layers, from `head_layers`.
        side: Side of photos in pixels.
        classes: Number of classes.

    Raises:
        NotExportable: It cannot be divided there; the text names the layer or operation, and a remedy.
    """
    model.eval()
    photos = torch.rand((2, 3, side, side), generator=torch.Generator().manual_seed(0))
    with _NoDropout():
        expected = _run(model, photos)
    check_logits(expected, classes)
    head = own_head.record(model, layers, photos)
    backbone = _up_to(model, layers)
    with torch.no_grad():
        features = backbone(photos)
        if features.ndim != 2:
            raise NotExportable(
                f"the input of layer {head.first!r} is {['N', *features.shape[1:]]}; features must be [N, F], so pool "
                "or flatten before it"
            )
        found = head.module(features)
    difference = (found - expected).abs().max().item() / max(1.0, expected.abs().max().item())
    if not difference <= _TOLERANCE:
        raise NotExportable(
            f"divided before layer {head.first!r}, the model gives logits that differ by {difference:.2g}; its forward "
            "must depend on the photos alone, and must not change the features behind the backbone"
        )
    return Divided(backbone, head.module, head.left_out)


def without_dropout(model: nn.Module, side: int) -> tuple[str, ...]:
    """Replace the dropout layers of a model that is trained as a whole; returns their names.

    Raises:
        NotExportable: `forward` calls dropout as a function.
    """
    every = model.named_modules(remove_duplicate=False)  # one layer may have several names
    named = [name for name, module in every if isinstance(module, nn.modules.dropout._DropoutNd)]
    for name in named:
        model.set_submodule(name, nn.Identity())
    before = [buffer.clone() for buffer in model.buffers()]
    model.train()
    with _NoDropout(), torch.no_grad():
        _run(model, torch.zeros(2, 3, side, side))
        for buffer, value in zip(model.eval().buffers(), before, strict=True):
            buffer.copy_(value)  # BatchNorm has counted these photos in
    return tuple(named)


class _NoDropout(torch.overrides.TorchFunctionMode):
    """Refuses calls of dropout functions."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if own_head.is_dropout(func) and own_head.is_on(func, args, kwargs or {}):
            raise NotExportable(own_head.DROPOUT)
        return func(*args, **(kwargs or {}))


class _Entrance(nn.Module):
    """In place of a layer of the head: records its input and returns zeros.

    It does not end the call with an exception, because torch.export then loses count of modules.
    """

    def __init__(self, width: int, record: Callable[[Tensor], None]) -> None:
        super().__init__()
        self.width, self.record = width, record

    def forward(self, features: Tensor) -> Tensor:
        self.record(features)
        return features.new_zeros((*features.shape[:-1], self.width))


def _up_to(model: nn.Module, layers: Mapping[str, nn.Linear]) -> nn.Module:
    whole = model.forward
    entered: list[Tensor] = []

    def features(photos: Tensor) -> Tensor:
        entered.clear()
        whole(photos)
        if not entered:
            raise NotExportable("the model does not call its head's layers as layers, so it cannot be divided")
        first = entered[0]
        entered.clear()
        return first

    for name, layer in layers.items():
        model.set_submodule(name, _Entrance(layer.out_features, entered.append))
    # Set on the object, so that its tensors keep their names.
    model.forward = features
    return model


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
    known = {"classes": classes, "num_classes": classes, "input_size": side}
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # functions written in C may have no signature
        parameters = {}.values()
    named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY, p.POSITIONAL_ONLY)]
    if unknown := [p.name for p in named if p.default is p.empty and p.name not in known]:
        raise NotExportable(
            f"{model} asks for {unknown[0]!r}; export passes {', '.join(known)}: give every other argument a default"
        )
    first = [known[p.name] for p in named if p.kind is p.POSITIONAL_ONLY and p.name in known]
    others = {p.name: known[p.name] for p in named if p.kind is not p.POSITIONAL_ONLY and p.name in known}
    try:
        made = function(*first, **others)
    except Exception as error:  # whatever a foreign function raises
        raise NotExportable(f"{model} failed{own_head.at(error)}: {type(error).__name__}: {error}") from error
    if isinstance(made, torch.jit.ScriptModule) or not isinstance(made, nn.Module):
        raise NotExportable(f"{model} returns {type(made).__name__}; it must return an nn.Module that is not scripted")
    return made


def _check_tensors(model: str, made: nn.Module) -> None:
    for name, tensor in (*made.named_parameters(), *made.named_buffers()):
        fits = tensor.dtype == torch.float32 or not (tensor.is_floating_point() or tensor.is_complex())
        if not fits or tensor.device.type != "cpu":
            raise NotExportable(
                f"{model}: {name!r} is {tensor.dtype} on {tensor.device}; it must be float32 on the CPU: return "
                "model.float().cpu()"
            )


def _run(model: nn.Module, photos: Tensor) -> Tensor:
    try:
        with torch.no_grad():
            found: Tensor = model(photos)
    except NotExportable:
        raise
    except Exception as error:  # whatever a foreign model raises
        raise NotExportable(
            f"the model cannot take photos, float32{list(photos.shape)}{own_head.at(error)}: {error}"
        ) from error
    return found


def _listed(layers: Iterable[str]) -> str:
    names = list(layers)
    # The last names, because a head consists of the last layers.
    return ("..., " if len(names) > _MOST_LISTED else "") + ", ".join(names[-_MOST_LISTED:]) or "none"
