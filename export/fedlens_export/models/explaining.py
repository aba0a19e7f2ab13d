"""Why a user's own model cannot be exported, with the line of its code or the layer where that shows."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from fedlens_export.errors import NotExportable
from fedlens_export.models import own_head
from fedlens_proto.errors import ProgramRefused


@contextmanager
def explained(model: nn.Module, side: int) -> Iterator[None]:
    """Whatever cannot be exported of a model in here is told with the line of the user's code where it happened."""
    try:
        yield
    except NotExportable as error:
        cause, first = error.__cause__, str(error).partition("\n")[0][:300]
        if isinstance(cause, ProgramRefused):
            place = _place_of_operator(model, side, str(cause))
            advice = _recurrent(model) or "express it by other operators, or leave it out"
        elif cause is not None:
            place, advice = own_head.place_of(cause), "programs cannot branch on values, leave torch or draw"
        else:
            place, advice = own_head.place_of(error), ""
            first = str(error)
        if not place or place in str(error):
            raise
        raise NotExportable(f"{first} (at {place})" + (f"; {advice}" if advice else "")) from error


def _recurrent(model: nn.Module) -> str:
    """What to do where the model has recurrent layers, whose operators are not those that the user has written."""
    named = [(name, type(layer).__name__) for name, layer in model.named_modules() if isinstance(layer, nn.RNNBase)]
    if not named:
        return ""
    (name, kind), *_ = named
    return (
        f"layer {name!r} ({kind}) is recurrent, and programs have no loops: take convolutions, pooling or FC layers in "
        "its place"
    )


class _Applied(Exception):
    """An operator that is looked for was applied."""


class _Search(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch has no types there
    """Stops where an operator is applied."""

    def __init__(self, operator: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # likewise
        self._operator = operator

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if str(func) == self._operator:
            raise _Applied
        return func(*args, **(kwargs or {}))


def _place_of_operator(model: nn.Module, side: int, refusal: str) -> str:
    found = re.search(r"'torch\.ops\.([\w.]+)'", refusal)
    photo = torch.zeros(1, 3, side, side)
    try:
        with torch.no_grad(), _Search(found[1] if found else ""):
            model(photo)
    except _Applied as applied:
        return own_head.place_of(applied)
    return ""
