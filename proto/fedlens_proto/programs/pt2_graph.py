"""The graph inside a `.pt2` program, read by an allow-list of fields, operators and kinds of arguments.

Each function takes a piece of JSON from the file and returns a new one with known content only.
"""

import math
import re
import sys
from collections.abc import Callable, Sequence
from functools import lru_cache
from keyword import iskeyword
from typing import Any, NoReturn, TypeVar

from fedlens_proto.errors import ProgramRefused
from fedlens_proto.programs.pt2_rules import BY_OPERATOR

MAX_ELEMENTS = 1 << 28
MAX_NODES = 20_000
MAX_DIMENSIONS = 8

OPERATORS = frozenset(f"torch.ops.aten.{name}" for name in BY_OPERATOR)

# Numbers of torch's serialised enumerations: uint8, int64, float32 and bool; strided layout; contiguous and preserved.
_SCALAR_TYPES = frozenset({1, 5, 7, 12})
_LAYOUTS = frozenset({7})
_MEMORY_FORMATS = frozenset({1, 4})
_CPU = {"type": "cpu", "index": None}
_SYMBOLIC = ("sym_int_values", "sym_bool_values", "sym_float_values", "custom_obj_values")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}")
# torch puts tensor names into generated source, where these mean something else.
_RESERVED_NAMES = frozenset({"torch", "self", "operator", "device", "inf", "nan", "NoneType"})

Json = Any
T = TypeVar("T")


def graph(value: Json) -> Json:
    """A graph of known operators on tensors of known size, each defined before its use.

    Raises:
        ProgramRefused: It has any other content.
    """
    fields = fields_of(
        "the graph",
        value,
        ("inputs", "outputs", "nodes", "tensor_values"),
        optional=(*_SYMBOLIC, "is_single_tensor_return"),
    )
    for name in _SYMBOLIC:
        empty(name, fields.get(name))
    if fields.get("is_single_tensor_return"):
        refuse("it returns a tensor, not a tuple of tensors")
    if not isinstance(fields["tensor_values"], dict):
        refuse("tensor_values is no object")
    inputs = list_of("the graph's inputs", fields["inputs"], _tensor_only)
    nodes = list_of("the graph's nodes", fields["nodes"], _node)
    outputs = list_of("the graph's outputs", fields["outputs"], _tensor_only)
    _check_order(inputs, nodes, outputs)
    described = {identifier(name): _description(name, found) for name, found in fields["tensor_values"].items()}
    defined = [name for item in [{"outputs": inputs}, *nodes] for name in tensors_of(item["outputs"])]
    if missing := [name for name in defined if name not in described]:
        refuse(f"tensor {missing[0]!r} is not described")
    return {
        "inputs": inputs,
        "outputs": outputs,
        "nodes": nodes,
        "tensor_values": {name: described[name] for name in defined},
        **{name: {} for name in _SYMBOLIC},
        "is_single_tensor_return": False,
    }


def refuse(found: str) -> NoReturn:
    """Refuse a program, naming what was found; a file may hold text that is no Unicode."""
    raise ProgramRefused(f"program refused: {found}".encode(errors="backslashreplace").decode())


def fields_of(where: str, value: Json, needed: Sequence[str], optional: Sequence[str] = ()) -> dict[str, Json]:
    """The fields of a JSON object that has all of `needed` and none beyond `optional`.

    Raises:
        ProgramRefused: It is no object, or has other fields.
    """
    if not isinstance(value, dict):
        refuse(f"{where} is no object")
    if tuple(value) == (*needed, *optional):
        return value  # as torch writes it
    if unknown := sorted(value.keys() - {*needed, *optional}):
        refuse(f"{where} has a field {unknown[0][:40]!r}")
    if missing := sorted(set(needed) - value.keys()):
        refuse(f"{where} has no field {missing[0]!r}")
    return value


def list_of(where: str, value: Json, read: Callable[[Json], T]) -> list[T]:
    """Each item of a JSON list, through `read`.

    Raises:
        ProgramRefused: It is no list, or absurdly long.
    """
    if not isinstance(value, list):
        refuse(f"{where}: found {str(value)[:40]!r}, not a list")
    if len(value) > MAX_NODES:
        refuse(f"{where}: {len(value)} items; at most {MAX_NODES} are allowed")
    return [read(item) for item in value]


def empty(where: str, value: Json) -> None:
    """Check that a value is empty or absent.

    Raises:
        ProgramRefused: It is neither.
    """
    if value:
        refuse(f"{where} is not empty: {str(value)[:80]}")


def integer(where: str, value: Json) -> int:
    """An integer of at most `MAX_ELEMENTS` in size.

    Raises:
        ProgramRefused: It is something else.
    """
    if type(value) is not int or abs(value) > MAX_ELEMENTS:
        refuse(f"{where} is {str(value)[:40]}, not a number up to {MAX_ELEMENTS}")
    return value


def identifier(name: Json) -> str:
    """A name without other meaning in generated source.

    Raises:
        ProgramRefused: It is something else.
    """
    if not isinstance(name, str) or not _is_plain(name) or name in _RESERVED_NAMES:
        refuse(f"{str(name)[:80]!r} is not allowed as a name")
    return name


@lru_cache(MAX_NODES)
def _is_plain(name: str) -> bool:
    return bool(_NAME.fullmatch(name)) and not iskeyword(name)


def _check_order(inputs: list[Json], nodes: list[Json], outputs: list[Json]) -> None:
    known: set[str] = set()

    def define(names: list[str]) -> None:
        for name in names:
            if name in known:
                refuse(f"two of its tensors have the name {name!r}")
            known.add(name)

    def use(where: str, names: list[str]) -> None:
        if undefined := [name for name in names if name not in known]:
            refuse(f"{where} uses tensor {undefined[0]!r} before it is there")

    define(tensors_of(inputs))
    for node in nodes:
        use(node["target"], tensors_of([entry["arg"] for entry in node["inputs"]]))
        define(tensors_of(node["outputs"]))
    use("the output", tensors_of(outputs))


def tensors_of(arguments: list[Json]) -> list[str]:
    """Names of the tensors among arguments, in their order."""
    return [
        tensor["name"]
        for argument in arguments
        for tensor in (*argument.get("as_tensors", ()), *([argument["as_tensor"]] if "as_tensor" in argument else ()))
    ]


def _node(value: Json) -> Json:
    fields = fields_of(
        "a node",
        value,
        ("target", "inputs", "outputs"),
        optional=("metadata", "is_hop_single_tensor_return", "name"),
    )
    target = fields["target"]
    if not isinstance(target, str) or target not in OPERATORS:
        refuse(f"operator {str(target)[:80]!r} is not among those that programs use")
    if fields.get("is_hop_single_tensor_return"):
        refuse(f"{target} is marked as an operator of higher order")
    name = fields.get("name")
    return {
        "target": target,
        "inputs": list_of(f"{target}, inputs", fields["inputs"], _named_argument),
        "outputs": list_of(f"{target}, outputs", fields["outputs"], _output),
        # The file's has stack traces with paths, and names of modules to import.
        "metadata": {},
        "is_hop_single_tensor_return": None,
        "name": None if name is None else identifier(name),
    }


def _named_argument(value: Json) -> Json:
    fields = fields_of("an argument", value, ("name", "arg", "kind"))
    name = fields["name"]
    if not isinstance(name, str) or not _is_plain(name):
        refuse(f"{str(name)[:80]!r} is not allowed as the name of an argument")
    if type(fields["kind"]) is not int or fields["kind"] not in (1, 2):
        refuse(f"argument {name} is of kind {str(fields['kind'])[:20]}")
    return {"name": name, "arg": _argument(name, fields["arg"]), "kind": fields["kind"]}


def _argument(name: str, value: Json) -> Json:
    if not isinstance(value, dict) or len(value) != 1:
        refuse(f"argument {name} is {str(value)[:80]}")
    ((kind, content),) = value.items()
    if kind not in _ARGUMENTS:
        refuse(f"argument {name} is given {str(kind)[:40]!r}, which is not allowed")
    return {kind: _ARGUMENTS[kind](content)}


def _tensor_only(value: Json) -> Json:
    return {"as_tensor": _tensor(fields_of("an input or output", value, ("as_tensor",))["as_tensor"])}


def _output(value: Json) -> Json:
    # Some operators have unused outputs.
    return {"as_none": True} if value == {"as_none": True} else _tensor_only(value)


def _tensor(value: Json) -> Json:
    return {"name": identifier(fields_of("a tensor", value, ("name",))["name"])}


def _description(name: str, value: Json) -> Json:
    where = f"tensor {name}"
    fields = fields_of(
        where,
        value,
        ("dtype", "sizes", "requires_grad", "device", "strides", "storage_offset", "layout"),
    )

    def number(item: Json) -> Json:
        return {"as_int": integer(where, fields_of(where, item, ("as_int",))["as_int"])}

    sizes = list_of(where, fields["sizes"], number)
    if len(sizes) > MAX_DIMENSIONS or any(size["as_int"] < 0 for size in sizes):
        refuse(f"tensor {name} has sizes {str(fields['sizes'])[:80]}; up to {MAX_DIMENSIONS}, from 0 on, are allowed")
    if math.prod(size["as_int"] for size in sizes) > MAX_ELEMENTS:
        refuse(f"tensor {name} has more than {MAX_ELEMENTS} elements")
    return {
        "dtype": _scalar_type(fields["dtype"]),
        "sizes": sizes,
        "requires_grad": _truth(fields["requires_grad"]),
        "device": _device(fields["device"]),
        "strides": list_of(where, fields["strides"], number),
        "storage_offset": number(fields["storage_offset"]),
        "layout": _layout(fields["layout"]),
    }


def _among(what: str, allowed: frozenset[int]) -> Callable[[Json], int]:
    def read(value: Json) -> int:
        if type(value) is not int or value not in allowed:
            refuse(f"{what} {str(value)[:40]} is not allowed")
        return value

    return read


def _number(value: Json) -> float:
    # The comparison comes first, because an integer beyond the range of float cannot be converted.
    if type(value) not in (int, float) or not abs(value) <= sys.float_info.max:
        refuse(f"{str(value)[:40]!r} found in place of a number")
    return float(value)


def _truth(value: Json) -> bool:
    if type(value) is not bool:
        refuse(f"{str(value)[:40]!r} found in place of true or false")
    return value


def _device(value: Json) -> Json:
    if value != _CPU:
        refuse(f"device {str(value)[:40]} is not allowed, only the CPU is")
    return dict(_CPU)


_scalar_type = _among("element type", _SCALAR_TYPES)
_layout = _among("layout", _LAYOUTS)

# All other kinds are refused: strings, expressions, sub-graphs, operators, custom objects, complex numbers.
_ARGUMENTS: dict[str, Callable[[Json], Json]] = {
    "as_tensor": _tensor,
    "as_tensors": lambda value: list_of("a list of tensors", value, _tensor),
    "as_int": lambda value: integer("an argument", value),
    "as_ints": lambda value: list_of("a list of numbers", value, lambda item: integer("an argument", item)),
    "as_float": _number,
    "as_bool": _truth,
    "as_bools": lambda value: list_of("a list of truth values", value, _truth),
    "as_none": _truth,
    "as_scalar_type": _scalar_type,
    "as_layout": _layout,
    "as_memory_format": _among("memory format", _MEMORY_FORMATS),
    "as_device": _device,
}
