"""Every tensor of a `.pt2` program, computed anew from its inputs without their content, and checked.

torch's kernels for tensors without content compute the shape of each result. What the file says otherwise is
refused, as are arguments against the rules of `pt2_rules`, and programs that take too much work or memory.

It needs torch, but torch reads nothing of the file before it has passed.
"""

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode

from fedlens_proto.programs import pt2
from fedlens_proto.programs.pt2_calls import Call, Value
from fedlens_proto.programs.pt2_graph import Json, refuse, tensors_of
from fedlens_proto.programs.pt2_rules import BY_OPERATOR

MAX_BYTES = 8 << 30
"""Memory of a run at its peak: inputs, results and what is in between."""
MAX_WORK = 1 << 40
"""Multiplications of a run, and elements that it reads and writes."""

# By torch's serialised numbers.
_DTYPES = {1: torch.uint8, 5: torch.int64, 7: torch.float32, 12: torch.bool}
_MEMORY_FORMATS = {1: torch.contiguous_format, 4: torch.preserve_format}
_BY_PLACE = 1


@dataclass(frozen=True)
class Needs:
    """What a run of a program needs: bytes at its peak, and multiplications and elements read and written."""

    peak_bytes: int
    work: int


def vetted(raw: bytes, constant: Collection[int] = ()) -> bytes:
    """The canonical bytes of a program whose operators stay within their tensors, whatever its inputs hold.

    Args:
        raw: A `.pt2` archive.
        constant: Places of inputs that do not change between runs; what depends on them alone is kept between runs.

    Raises:
        ProgramRefused: As in `pt2.canonical`; or an operator's arguments are against its rule, a tensor is not what the
            file says, or the program takes too much work or memory.
    """
    canonical = pt2.canonical(raw)
    needs(pt2.graph_of(canonical), constant)
    return canonical


def needs(graph: Json, constant: Collection[int] = ()) -> Needs:
    """Check the graph of a canonical program.

    Args:
        graph: From `pt2.graph_of`.
        constant: As in `vetted`.

    Raises:
        ProgramRefused: As in `vetted`.
    """
    checked = _Graph(graph["tensor_values"])
    inputs, returned = tensors_of(graph["inputs"]), tensors_of(graph["outputs"])
    with _quietly(), FakeTensorMode(allow_fallback_kernels=False):
        for name in inputs:
            checked.add_input(name)
        for node in graph["nodes"]:
            checked.add(node)
    return Needs(checked.peak_bytes(graph["nodes"], inputs, returned, constant), checked.work)


@contextmanager
def _quietly() -> Iterator[None]:
    """Keep torch from logging what a call raised, which the refusal says."""
    log = logging.getLogger("torch._subclasses.fake_tensor")
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(level)


class _Graph:
    """The tensors of a graph so far, without content, and what its calls need."""

    def __init__(self, described: Mapping[str, Json]) -> None:
        self._described = described
        self._tensors: dict[str, Tensor] = {}
        self._values: dict[str, Value] = {}
        self._copies: list[int] = []
        self.work = 0

    def add_input(self, name: str) -> None:
        """Add an input; it is contiguous."""
        described = self._described[name]
        shape = [size["as_int"] for size in described["sizes"]]
        if any(size < 0 for size in shape):
            refuse(f"input {name!r} has sizes {shape}")
        self._keep(name, torch.empty(shape, dtype=_DTYPES[described["dtype"]]), None, 0)

    def add(self, node: Json) -> None:
        """Add the results of a call."""
        target = node["target"].removeprefix("torch.ops.aten.")
        packet, _, overload = target.partition(".")
        operator = getattr(getattr(torch.ops.aten, packet), overload)
        names = [output["as_tensor"]["name"] if "as_tensor" in output else None for output in node["outputs"]]
        label = next(filter(None, names), "")
        places, given = _bound(Call(target, label, {}), operator._schema.arguments, node["inputs"])
        call = Call(target, label, {name: _read(argument, self._values) for name, argument in given.items()})
        rule = BY_OPERATOR[target]
        if empty := [value for value in call.tensors if 0 in value.shape]:
            call.refuse("an argument", empty[0], "a tensor that is not empty")
        if call.arguments.get("pin_memory"):
            call.refuse("pin_memory", True, False)
        rule.check(call)
        results = self._results(call, operator, places, given)
        if len(results) != len(names):
            call.refuse("the number of its results", len(names), len(results))
        for place, (name, result) in enumerate(zip(names, results, strict=True)):
            if name is not None:
                if result is None:
                    call.refuse(f"result {name!r}", "a tensor", "none, since the output mask leaves it out")
                self._keep(name, result, call, place)
        self.work += rule.work(call, [self._values[name] for name in names if name is not None])
        if self.work > MAX_WORK:
            call.refuse("the work up to here", self.work, f"{MAX_WORK} multiplications and elements read and written")
        self._copies.append(sum(value.bytes for value in call.tensors) if rule.copies else 0)

    def peak_bytes(
        self, nodes: Sequence[Json], inputs: Sequence[str], returned: Sequence[str], constant: Collection[int]
    ) -> int:
        """The memory in use at its peak, as tensors are freed after their last use.

        Raises:
            ProgramRefused: It is too much.
        """
        end = len(nodes)
        steady = {inputs[place] for place in constant}
        first, last = {}, {}
        for name in inputs:
            first[self._memory(name)], last[self._memory(name)] = 0, end
        for place, node in enumerate(nodes):
            read, made = tensors_of([each["arg"] for each in node["inputs"]]), tensors_of(node["outputs"])
            is_steady = steady.issuperset(read)
            if is_steady:
                steady.update(made)
            for name in (*read, *made):
                memory = self._memory(name)
                if name in steady and not is_steady:
                    first[memory], last[memory] = 0, end  # kept between runs
                else:
                    first.setdefault(memory, place)
                    last[memory] = max(place, last.get(memory, 0))
        kept = {self._memory(inputs[place]) for place in constant}
        for name in returned:
            last[self._memory(name)] = end
            if self._memory(name) in kept:
                refuse(f"result {name!r} shares the memory of an input that does not change between runs")
        changes = [0] * (end + 2)
        for (number, size), place in first.items():
            changes[place] += size
            changes[last[number, size] + 1] -= size
        peak = max(live + copied for live, copied in zip(accumulate(changes), (*self._copies, 0, 0), strict=True))
        if peak > MAX_BYTES:
            refuse(f"a run needs {peak} bytes of memory; at most {MAX_BYTES} are allowed")
        return peak

    def _memory(self, name: str) -> tuple[int, int]:
        """The number and the size of the memory that a tensor is in."""
        storage = self._tensors[name].untyped_storage()
        return storage._cdata, storage.nbytes()

    def _results(self, call: Call, operator: Any, places: int, given: Mapping[str, Json]) -> Sequence[Tensor | None]:
        arguments = {name: _read(argument, self._tensors) for name, argument in given.items()}
        first = [arguments.pop(name) for name in list(arguments)[:places]]
        try:
            found = operator(*first, **arguments)
        except Exception as error:  # whatever torch raises for arguments that do not fit
            call.refuse("a call", f"impossible ({str(error).partition(chr(10))[0][:200]})", "one that torch can make")
        return found if isinstance(found, tuple) else (found,)

    def _keep(self, name: str, tensor: Tensor, call: Call | None, place: int) -> None:
        described = self._described[name]
        sizes, strides = ([item["as_int"] for item in described[key]] for key in ("sizes", "strides"))
        said = _form(sizes, strides, described["storage_offset"]["as_int"], _DTYPES[described["dtype"]])
        found = _form(tensor.shape, tensor.stride(), int(tensor.storage_offset()), tensor.dtype)
        if found != said:
            refuse(f"tensor {name!r} is {found}, but the program describes it as {said}")
        steps = zip(tensor.shape, tensor.stride(), strict=True)
        last = tensor.storage_offset() + sum((size - 1) * stride for size, stride in steps)
        if tensor.numel() and (last + 1) * tensor.element_size() > tensor.untyped_storage().nbytes():
            refuse(f"tensor {name!r} is {found}, which reaches out of its memory")
        self._tensors[name] = tensor
        self._values[name] = Value(tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."), call, place)


def _bound(call: Call, schema: Sequence[Any], inputs: Sequence[Json]) -> tuple[int, dict[str, Json]]:
    """How many arguments come by place, and all of them by name, in the order of the schema."""
    listed = {each["name"]: each for each in inputs}
    if len(listed) < len(inputs):
        call.refuse("an argument", "given twice", "each once")
    bound: dict[str, Json] = {}
    places = 0
    for place, argument in enumerate(schema):
        found = listed.pop(argument.name, None)
        if found is None:
            if not argument.has_default_value():
                call.refuse(f"argument {argument.name}", "missing", argument.type)
            bound[argument.name] = {"default": argument.default_value}
        else:
            bound[argument.name] = found["arg"]
            if found["kind"] == _BY_PLACE:
                if argument.kwarg_only or place != places:
                    call.refuse(f"argument {argument.name}", f"at place {places}", f"place {place}, or by name")
                places += 1
    if listed:
        call.refuse("an argument", repr(min(listed)), ", ".join(argument.name for argument in schema))
    return places, bound


def _read(argument: Json, tensors: Mapping[str, Any]) -> Any:
    ((kind, content),) = argument.items()
    match kind:
        case "as_tensor":
            return tensors[content["name"]]
        case "as_tensors":
            return [tensors[each["name"]] for each in content]
        case "as_scalar_type":
            return _DTYPES[content]
        case "as_memory_format":
            return _MEMORY_FORMATS[content]
        case "as_none" | "as_layout" | "as_device":
            return None  # only one layout and one device are allowed
    return content


def _form(sizes: Sequence[int], strides: Sequence[int], offset: int, dtype: torch.dtype) -> str:
    where = f" from {offset}" if offset else ""
    return f"{str(dtype).removeprefix('torch.')}{list(sizes)} in strides {list(strides)}{where}"
