"""Refusals of a user's own model with the line of its code, or the layer, that causes them."""

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
    """Add to each `NotExportable` raised inside the line of the user's code that causes it, and advice."""
    try:
        yield
    except NotExportable as error:
        text, cause = str(error), error.__cause__
        if cause is None:
            place, advice = own_head.place_of(error), ""
        else:
            text = text.partition("\n")[0][:300]  # torch's next lines are about its own code
            if isinstance(cause, ProgramRefused):
                place, advice = _place_of_operator(model, side, str(cause)), _advice_on_operators(model)
            else:
                place = own_head.place_of(cause)
                advice = (
                    "; programs cannot branch on values, call functions outside torch, draw random numbers, or use "
                    "tensors that are neither parameters nor buffers"
                )
        if not place or place in str(error):
            raise
        raise NotExportable(f"{text} (at {place}){advice}") from error


def _advice_on_operators(model: nn.Module) -> str:
    for name, layer in model.named_modules():
        # Its operators are not in the user's code, so the place alone says little.
        if isinstance(layer, nn.RNNBase):
            return (
                f"; layer {name!r} ({type(layer).__name__}) is recurrent, and programs have no loops: take "
                "convolutions, pooling or FC layers in its place"
            )
    return "; express it by other operators, or leave it out"


class _Called(Exception):
    """The model calls the operator that is searched for."""


class _Search(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch has no types there
    """Raises `_Called` when an operator is called."""

    def __init__(self, operator: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # likewise
        self._operator = operator

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if str(func) == self._operator:
            raise _Called
        return func(*args, **(kwargs or {}))


def _place_of_operator(model: nn.Module, side: int, refusal: str) -> str:
    """The line of the user's code that calls the operator which `refusal` quotes; empty if no line does."""
    found = re.search(r"'torch\.ops\.([\w.]+)'", refusal)
    photos = torch.zeros(2, 3, side, side)  # one alone has no statistics, if the operator is in training only
    try:
        with torch.no_grad(), _Search(found[1] if found else ""):
            model(photos)
    except _Called as called:
        return own_head.place_of(called)
    except Exception:  # the refusal says more than why its place was not found
        return ""
    return ""
