"""The forms of an operator's results, which torch computes from those of its arguments, without content.

A program makes few calls that differ, and many of each: what torch has found for one is kept.
"""

from collections.abc import Set
from functools import cache, lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedlens_proto.programs.pt2_calls import Form

# By torch's serialised numbers.
_DTYPES = {1: torch.uint8, 5: torch.int64, 7: torch.float32, 12: torch.bool}
_MEMORY_FORMATS = {1: torch.contiguous_format, 4: torch.preserve_format}
# How a file may give an argument of each type in torch's schemas. torch also takes 0 or None for false, and what is
# checked here must be what the CPU's kernels see.
_NUMBERS = {"as_int", "as_float", "as_bool"}
_KINDS = {
    **{"Tensor": {"as_tensor", *_NUMBERS}, "number": _NUMBERS, "float": {"as_float"}, "List[Tensor]": {"as_tensors"}},
    **{"int": {"as_int"}, "List[int]": {"as_ints"}, "bool": {"as_bool"}, "List[bool]": {"as_bools"}},
    **{"ScalarType": {"as_scalar_type"}, "MemoryFormat": {"as_memory_format"}},
    **{"Layout": {"as_layout"}, "Device": {"as_device"}},
}
_KEPT = 1 << 14


class Placed(NamedTuple):
    """A tensor of a call: its form, and the memory that it is in.

    Attributes:
        form: Of the tensor.
        memory: A number. Arguments number their memories from 0 on, in their order, and results go on with new ones.
        bytes: The size of that memory.
    """

    form: Form
    memory: int
    bytes: int


class Given(NamedTuple):
    """An argument of a call.

    Attributes:
        name: By the operator's schema.
        kind: As in the file, such as `as_int`: torch tells 1, 1.0 and true apart, which are equal here.
        content: As in the file, but with tuples for lists and `Placed` for tensors.
    """

    name: str
    kind: str
    content: Any


class Parameter(NamedTuple):
    """An argument that an operator takes; `kinds` are those in which a file may give it, such as `as_int`."""

    name: str
    type: str
    kinds: Set[str]
    by_name: bool
    is_needed: bool
    default: Any


@cache
def parameters(operator: str) -> tuple[Parameter, ...]:
    """The schema of an operator such as `add.Tensor`."""
    return tuple(
        Parameter(
            each.name,
            str(each.real_type),
            _kinds(str(each.real_type)),
            each.kwarg_only,
            not each.has_default_value(),
            each.default_value if each.has_default_value() else None,
        )
        for each in _overload(operator)._schema.arguments
    )


@lru_cache(_KEPT)
def results(operator: str, places: int, given: tuple[Given, ...]) -> tuple[Placed | None, ...]:
    """The results of a call; None: one that its output mask leaves out.

    Args:
        operator: Such as `add.Tensor`.
        places: How many of the arguments are given by place.
        given: The arguments that are not left out.

    Raises:
        Exception: Whatever torch raises for arguments that do not fit.
    """
    memories: dict[int, Tensor] = {}

    def tensor(placed: Placed) -> Tensor:
        dtype, shape, strides, offset = placed.form
        if placed.memory not in memories:
            memories[placed.memory] = torch.empty(placed.bytes, dtype=torch.uint8, device="meta")
        return memories[placed.memory].view(getattr(torch, dtype)).as_strided(shape, strides, offset)

    named = {each.name: _read(each, tensor) for each in given}
    first = [named.pop(each.name) for each in given[:places]]
    if any(each.name == "device" for each in parameters(operator)):
        named["device"] = "meta"
    found = _overload(operator)(*first, **named)
    if operator == "native_batch_norm.default" and Given("training", "as_bool", False) in given:
        # A CPU gives no statistics of a batch that it does not normalise by; the kernel for no content does.
        found = (found[0], found[1].new_empty(0), found[2].new_empty(0))
    known = {memory.untyped_storage()._cdata: number for number, memory in memories.items()}
    made: list[Placed | None] = []
    for each in found if isinstance(found, tuple) else (found,):
        if each is None:
            made.append(None)
        else:
            storage = each.untyped_storage()
            number = known.setdefault(storage._cdata, len(known))
            made.append(Placed(_form(each), number, storage.nbytes()))
    return tuple(made)


def _kinds(written: str) -> Set[str]:
    optional = written.removeprefix("Optional[")
    return _KINDS[written] if optional == written else _KINDS[optional.removesuffix("]")] | {"as_none"}


def _read(given: Given, tensor: Any) -> Any:
    match given.kind:
        case "as_tensor":
            return tensor(given.content)
        case "as_tensors":
            return [tensor(each) for each in given.content]
        case "as_scalar_type":
            return _DTYPES[given.content]
        case "as_memory_format":
            return _MEMORY_FORMATS[given.content]
        case "as_none" | "as_layout" | "as_device":
            return None  # only one layout and one device are allowed
    return list(given.content) if isinstance(given.content, tuple) else given.content


def _form(tensor: Tensor) -> Form:
    dtype = str(tensor.dtype).removeprefix("torch.")
    return Form(dtype, tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset()))


def _overload(operator: str) -> Any:
    packet, _, overload = operator.partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload)
