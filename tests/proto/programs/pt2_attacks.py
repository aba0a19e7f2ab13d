"""Programs that would run code if torch loaded them; the code only makes a file."""

import io
import json
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

MODEL = "models/model.json"
Members = dict[str, bytes]
Attack = Callable[[Members, Path], Members]


class _Scale(nn.Module):
    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        x, w = tensors
        return (torch.relu(x * w) + 1.0,)


def genuine() -> bytes:
    """A harmless program, as torch writes it."""
    program = torch.export.export(_Scale(), (torch.ones(2, 3), torch.ones(3)))
    program._example_inputs = None
    stream = io.BytesIO()
    torch.export.save(program, stream)
    return stream.getvalue()


def members_of(raw: bytes) -> Members:
    with zipfile.ZipFile(io.BytesIO(raw)) as archive:
        return {name.partition("/")[2]: archive.read(name) for name in archive.namelist()}


def pack(members: Members, root: str = "a", compression: int = zipfile.ZIP_STORED) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", compression) as archive:
        for name, content in members.items():
            archive.writestr(f"{root}/{name}", content)
    return stream.getvalue()


class MakesFile:
    """Unpickling it makes a file."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.marker,))


def _pickled(marker: Path) -> bytes:
    stream = io.BytesIO()
    torch.save((MakesFile(marker),), stream)
    return stream.getvalue()


def sample_inputs(members: Members, marker: Path) -> Members:
    return {**members, "data/sample_inputs/model.pt": _pickled(marker)}


def _by_pickle(kind: str, file: str, content: Callable[[Path], bytes] | None) -> Attack:
    """Weights or constants by a pickle, which is there or not."""
    entry = {"path_name": file, "is_param": kind == "weights", "use_pickle": True, "tensor_meta": None}
    config = json.dumps({"config": {"c": entry}}).encode()

    def attack(members: Members, marker: Path) -> Members:
        named = {f"data/{kind}/{file}": content(marker)} if content else {}
        return {**members, f"data/{kind}/model_{kind}_config.json": config, **named}

    return attack


def _in_json(change: Callable[[Any, str], object]) -> Attack:
    """An attack that changes the program's JSON only; `change` gets it and code that makes the marker."""

    def attack(members: Members, marker: Path) -> Members:
        model = json.loads(members[MODEL])
        change(model, f"__import__('builtins').open({str(marker)!r}, 'w')")
        return {**members, MODEL: json.dumps(model).encode()}

    return attack


def _put(path: str, value: object) -> Attack:
    """Set a field of the JSON, perhaps to a function of the code; `*` on the path is the first field of an object."""

    def change(model: Any, code: str) -> None:
        *way, last = path.split(".")
        for name in way:
            model = next(iter(model.values())) if name == "*" else model[int(name) if name.isdigit() else name]
        model[int(last) if last.isdigit() else last] = value(code) if callable(value) else value

    return _in_json(change)


_GRAPH = "graph_module.graph"
_NODE = f"{_GRAPH}.nodes.0"
_ARGUMENT = f"{_NODE}.inputs.1.arg"
_TENSOR = f"{_GRAPH}.tensor_values.*"
_IN_SPEC = "graph_module.module_call_graph.0.signature.in_spec"


def _expression(code: str) -> dict[str, Any]:
    return {"as_expr": {"expr_str": code, "hint": {"as_int": 3}}}


def _calls(target: str) -> Attack:
    def node(code: str) -> dict[str, Any]:
        return {"target": target, "inputs": [{"name": "", "arg": {"as_string": code}, "kind": 1}], "outputs": []}

    return _put(_NODE, node)


def _given(kind: str) -> Attack:
    return _put(_ARGUMENT, lambda code: {kind: code})


def _renamed_input(model: Any, code: str) -> None:
    # torch writes the names of inputs into a function's head, where a default value is run.
    old = model["graph_module"]["graph"]["inputs"][0]["as_tensor"]["name"]
    model.update(json.loads(json.dumps(model).replace(json.dumps(old), json.dumps(f"{old}={code}"))))


def _tree_of_a_class(model: Any, _code: str) -> None:
    signature = model["graph_module"]["module_call_graph"][0]["signature"]
    signature["in_spec"] = signature["in_spec"].replace("builtins.dict", "collections.namedtuple")


def _second_definition(model: Any, _code: str) -> None:
    nodes = model["graph_module"]["graph"]["nodes"]
    nodes.append(nodes[0])


# What is refused, and a piece of the reason.
ATTACKS: dict[str, tuple[Attack, str]] = {
    "a member that programs do not have": (
        lambda members, _: {**members, "data/aotinductor/model.so": b"\x7fELF"},
        r"data/aotinductor/model\.so",
    ),
    "a missing member": (
        lambda members, _: {name: raw for name, raw in members.items() if name != "byteorder"},
        "'byteorder' is missing",
    ),
    "pickled sample inputs": (sample_inputs, "sample inputs, which are a pickle"),
    "opaque constant": (
        _by_pickle("constants", "opaque_obj_0", lambda marker: pickle.dumps(MakesFile(marker))),
        "opaque_obj_0",
    ),
    "constant by pickle": (
        _by_pickle("constants", "opaque_obj_0", None),
        "model_constants_config.json names weights or constants",
    ),
    "weight by pickle": (_by_pickle("weights", "weight_0", _pickled), "weight_0"),
    "expression in a size": (_put(f"{_TENSOR}.sizes.0", _expression), "has a field 'as_expr'"),
    "symbolic number": (
        _put(f"{_GRAPH}.sym_int_values", lambda code: {"s0": _expression(code)}),
        "sym_int_values is not empty",
    ),
    "guards": (_put("guards_code", lambda code: [f"{code} is not None"]), "guards_code is not empty"),
    "range constraints": (
        _put("range_constraints", lambda code: {code: {"min_val": 0, "max_val": 3}}),
        "range_constraints is not empty",
    ),
    "os.system as operator": (_calls("torch.os.system"), "operator 'torch.os.system'"),
    "eval as operator": (_calls("builtins.eval"), "operator 'builtins.eval'"),
    "aten.from_file": (_put(f"{_NODE}.target", "torch.ops.aten.from_file.default"), r"aten\.from_file"),
    "an operator with dots": (_put(f"{_NODE}.target", "torch.ops.aten.add.Tensor.__class__"), "__class__"),
    "a higher-order operator": (_put(f"{_NODE}.target", "torch.ops.higher_order.cond"), "higher_order"),
    "an input's name with a default": (_in_json(_renamed_input), "is not allowed as a name"),
    "an unknown field": (_put(f"{_NODE}.extra", lambda code: code), "a node has a field 'extra'"),
    "a class in the call signature": (_in_json(_tree_of_a_class), "in_spec is no flat tuple"),
    "named tuples": (
        _put("graph_module.treespec_namedtuple_fields", {"os.system": {"field_names": ["x"]}}),
        "treespec_namedtuple_fields is not empty",
    ),
    "a huge dimension": (_put(f"{_TENSOR}.sizes.0", {"as_int": 1 << 40}), "not a number up to"),
    "a huge tensor": (_put(f"{_TENSOR}.sizes", [{"as_int": 1 << 20}] * 2), "more than 268435456 elements"),
    "a name twice": (_in_json(_second_definition), "have the name"),
    "a tensor before it is made": (
        _in_json(lambda model, _: model["graph_module"]["graph"]["nodes"].reverse()),
        "before it is there",
    ),
    "a parameter": (
        _put("graph_module.signature.input_specs.0", {"parameter": {"arg": {"name": "x"}, "parameter_name": "w"}}),
        "input_specs is not the graph's list",
    ),
    "an infinite number": (_put(_ARGUMENT, {"as_float": float("inf")}), "holds the number Infinity"),
    "a number beyond float": (_put(_ARGUMENT, {"as_float": 10**400}), "in place of a number"),
    "a signature that is no text": (_put(_IN_SPEC, "\ud800"), "in_spec is no readable JSON"),
    "a version that is no Unicode": (
        _put("schema_version.major", "\ud800"),
        r"schema_version is \\ud800, not a number",
    ),
    "a kind of argument that is true": (_put(f"{_NODE}.inputs.1.kind", True), "is of kind True"),
    "another device": (_put(f"{_TENSOR}.device", {"type": "cuda", "index": 0}), "only the CPU is"),
    "text in place of a number": (_given("as_float"), "in place of a number"),
    "a string": (_given("as_string"), "given 'as_string'"),
    "a sub-graph": (_given("as_graph"), "given 'as_graph'"),
    "an operator as argument": (_given("as_operator"), "given 'as_operator'"),
    "a custom object": (_given("as_custom_obj"), "given 'as_custom_obj'"),
    "an expression as argument": (_given("as_expr"), "given 'as_expr'"),
}
