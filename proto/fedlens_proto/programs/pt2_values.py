"""Every tensor of a `.pt2` program, computed anew from its inputs without their content, and checked.

torch's kernels for tensors without content compute the shape of each result. What the file says otherwise is
refused, as are arguments against the rules of `pt2_rules`, and programs that take too much work or memory.

It needs torch, but torch reads nothing of the file before it has passed.
"""

import gc
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from operator import mul
from typing import Any, NamedTuple

from fedlens_proto.programs import pt2, pt2_forms
from fedlens_proto.programs.pt2_calls import Call, Form, Memory, Value
from fedlens_proto.programs.pt2_forms import Given, Parameter, Placed
from fedlens_proto.programs.pt2_graph import Json, refuse, tensors_of
from fedlens_proto.programs.pt2_rules import BY_OPERATOR

MAX_BYTES = 8 << 30
"""Memory of a run at its peak: inputs, results and what is in between."""
MAX_WORK = 1 << 40
"""Multiplications of a run, and elements that it reads and writes."""

# By torch's serialised numbers.
_DTYPES = {1: "uint8", 5: "int64", 7: "float32", 12: "bool"}
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
    with _without_collection():
        canonical, graph = pt2.read(raw)
        needs(graph, constant)
    return canonical


def needs(graph: Json, constant: Collection[int] = ()) -> Needs:
    """Check the graph of a canonical program.

    Args:
        graph: From `pt2.read`.
        constant: As in `vetted`.

    Raises:
        ProgramRefused: As in `vetted`.
    """
    checked = _Graph(graph["tensor_values"])
    for name in tensors_of(graph["inputs"]):
        checked.add_input(name)
    for node in graph["nodes"]:
        checked.add(node)
    return Needs(checked.peak_bytes(tensors_of(graph["outputs"]), constant), checked.work)


@contextmanager
def _without_collection() -> Iterator[None]:
    """Pause Python's search for cycles: a large program is a million objects without any, looked through many times."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class _Use(NamedTuple):
    """The tensors of a call, and the bytes of copies that it makes on its way."""

    read: Sequence[Value]
    made: Sequence[Value]
    copied: int


class _Graph:
    """The tensors of a graph so far, and what its calls need."""

    def __init__(self, described: Mapping[str, Json]) -> None:
        self._described = described
        self._values: dict[str, Value] = {}
        self._inputs: list[Value] = []
        self._uses: list[_Use] = []
        self.work = 0

    def add_input(self, name: str) -> None:
        """Add an input; it is contiguous."""
        dtype, shape, *_ = _described(self._described[name])
        strides = [*accumulate(reversed([max(size, 1) for size in shape[1:]]), mul, initial=1)][: len(shape)]
        form = Form(dtype, shape, tuple(reversed(strides)), 0)
        self._inputs.append(self._keep(name, Value(form, Memory(form.bytes))))

    def add(self, node: Json) -> None:
        """Add the results of a call."""
        target = node["target"].removeprefix("torch.ops.aten.")
        names = [output["as_tensor"]["name"] if "as_tensor" in output else None for output in node["outputs"]]
        label = next(filter(None, names), "")
        parameters = pt2_forms.parameters(target)
        places, given = _bound(Call(target, label, {}), parameters, node["inputs"])
        arguments = {
            each.name: _read(given[each.name], self._values) if each.name in given else each.default
            for each in parameters
        }
        call = Call(target, label, arguments)
        rule = BY_OPERATOR[target]
        if empty := [value for value in call.tensors if 0 in value.shape]:
            call.refuse("an argument", empty[0], "a tensor that is not empty")
        if arguments.get("pin_memory"):
            call.refuse("pin_memory", True, False)
        rule.check(call)
        results = _results(call, places, given)
        if len(results) != len(names):
            call.refuse("the number of its results", len(names), len(results))
        made = []
        for name, result in zip(names, results, strict=True):
            if name is not None:
                if result is None:
                    call.refuse(f"result {name!r}", "a tensor", "none, since the output mask leaves it out")
                made.append(self._keep(name, result))
        self.work += rule.work(call, made)
        if self.work > MAX_WORK:
            call.refuse("the work up to here", self.work, f"{MAX_WORK} multiplications and elements read and written")
        copied = sum(value.form.bytes for value in call.tensors) if rule.copies else 0
        self._uses.append(_Use(call.tensors, made, copied))

    def peak_bytes(self, returned: Sequence[str], constant: Collection[int]) -> int:
        """The memory in use at its peak, as tensors are freed after their last use.

        Raises:
            ProgramRefused: It is too much.
        """
        end = len(self._uses)
        constants = {self._inputs[place] for place in constant}
        steady = set(constants)
        first: dict[Memory, int] = dict.fromkeys((value.memory for value in self._inputs), 0)
        last = dict.fromkeys(first, end)
        for place, (read, made, _) in enumerate(self._uses):
            is_steady = steady.issuperset(read)
            if is_steady:
                steady.update(made)
            for value in (*read, *made):
                if value in steady and not is_steady:
                    first[value.memory], last[value.memory] = 0, end  # kept between runs
                else:
                    first.setdefault(value.memory, place)
                    last[value.memory] = max(place, last.get(value.memory, 0))
        kept = {value.memory for value in constants}
        for name in returned:
            memory = self._values[name].memory
            last[memory] = end
            if memory in kept:
                refuse(f"result {name!r} shares the memory of an input that does not change between runs")
        changes = [0] * (end + 2)
        for memory, place in first.items():
            changes[place] += memory.bytes
            changes[last[memory] + 1] -= memory.bytes
        copies = (*(use.copied for use in self._uses), 0, 0)
        peak = max(live + copied for live, copied in zip(accumulate(changes), copies, strict=True))
        if peak > MAX_BYTES:
            refuse(f"a run needs {peak} bytes of memory; at most {MAX_BYTES} are allowed")
        return peak

    def _keep(self, name: str, value: Value) -> Value:
        said = _described(self._described[name])
        if value.form != said and value.form.stepped != said.stepped:
            refuse(f"tensor {name!r} is {value.form}, but the program describes it as {said}")
        if value.form.reach > value.memory.bytes:
            refuse(f"tensor {name!r} is {value.form}, which reaches out of its memory")
        self._values[name] = value
        return value


def _described(tensor: Json) -> Form:
    """The form that a file gives a tensor."""
    sizes, strides = (tuple([each["as_int"] for each in tensor[key]]) for key in ("sizes", "strides"))
    return Form(_DTYPES[tensor["dtype"]], sizes, strides, tensor["storage_offset"]["as_int"])


def _results(call: Call, places: int, given: Mapping[str, Json]) -> list[Value | None]:
    """The results of a call; None: one that its output mask leaves out."""
    memories = list(dict.fromkeys(value.memory for value in call.tensors))

    def placed(value: Value) -> Placed:
        return Placed(value.form, memories.index(value.memory), value.memory.bytes)

    listed = []
    for name, argument in given.items():
        ((kind, content),) = argument.items()
        value = call.arguments[name]
        if kind == "as_tensor":
            content = placed(value)
        elif kind == "as_tensors":
            content = tuple(map(placed, value))
        elif isinstance(content, list):
            content = tuple(content)
        elif kind == "as_device":
            content = None
        listed.append(Given(name, kind, content))
    try:
        found = pt2_forms.results(call.operator, places, tuple(listed))
    except Exception as error:  # whatever torch raises for arguments that do not fit
        call.refuse("a call", f"impossible ({str(error).partition(chr(10))[0][:200]})", "one that torch can make")
    values: list[Value | None] = []
    for place, result in enumerate(found):
        if result is None:
            values.append(None)
            continue
        if result.memory == len(memories):
            memories.append(Memory(result.bytes))
        values.append(Value(result.form, memories[result.memory], call, place))
    return values


def _bound(call: Call, parameters: Sequence[Parameter], inputs: Sequence[Json]) -> tuple[int, dict[str, Json]]:
    """How many arguments come by place, and those that are given by name, in the order of the schema."""
    listed = {each["name"]: each for each in inputs}
    if len(listed) < len(inputs):
        call.refuse("an argument", "given twice", "each once")
    bound: dict[str, Json] = {}
    places = 0
    for place, parameter in enumerate(parameters):
        found = listed.pop(parameter.name, None)
        if found is None:
            if parameter.is_needed:
                call.refuse(f"argument {parameter.name}", "missing", parameter.type)
            continue
        ((kind, _),) = found["arg"].items()
        if kind not in parameter.kinds:
            call.refuse(f"argument {parameter.name}", f"given {kind!r}", parameter.type)
        bound[parameter.name] = found["arg"]
        if found["kind"] == _BY_PLACE:
            if parameter.by_name or place != places:
                call.refuse(f"argument {parameter.name}", f"at place {places}", f"place {place}, or by name")
            places += 1
    if listed:
        call.refuse("an argument", repr(min(listed)), ", ".join(parameter.name for parameter in parameters))
    return places, bound


def _read(argument: Json, values: Mapping[str, Value]) -> Any:
    ((kind, content),) = argument.items()
    match kind:
        case "as_tensor":
            return values[content["name"]]
        case "as_tensors":
            return [values[each["name"]] for each in content]
        case "as_none":
            return None
    return content
