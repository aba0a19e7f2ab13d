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
    def forward(self, x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        return (torch.relu(x * w) + 1.0,)


def genuine() -> bytes:
    """A harmless program, as torch writes it."""
    program = torch.export.export(_Flat(_Scale()), (torch.ones(2, 3), torch.ones(3)))
    program._example_inputs = None
    stream = io.BytesIO()
    torch.export.save(program, stream)
    return stream.getvalue()


class _Flat(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        result: tuple[Tensor, ...] = self.inner(*tensors)
        return result


def members_of(raw: bytes) -> Members:
    with zipfile.ZipFile(io.BytesIO(raw)) as archive:
        return {name.partition("/")[2]: archive.read(name) for name in archive.namelist()}


def pack(members: Members, root: str = "a", compression: int = zipfile.ZIP_STORED) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", compression) as archive:
        for name, content in members.items():
            archive.writestr(f"{root}/{name}", content)
    return stream.getvalue()


class _MakesFile:
    """Unpickling it makes a file."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.marker,))


def _code(marker: Path) -> str:
    return f"__import__('builtins').open({str(marker)!r}, 'w')"


def _pickled(marker: Path) -> bytes:
    stream = io.BytesIO()
    torch.save((_MakesFile(marker),), stream)
    return stream.getvalue()


def sample_inputs(members: Members, marker: Path) -> Members:
    return {**members, "data/sample_inputs/model.pt": _pickled(marker)}


def opaque_constant(members: Members, marker: Path) -> Members:
    config = {
        "config": {"c": {"path_name": "opaque_obj_0", "is_param": False, "use_pickle": True, "tensor_meta": None}}
    }
    return {
        **members,
        "data/constants/model_constants_config.json": json.dumps(config).encode(),
        "data/constants/opaque_obj_0": pickle.dumps(_MakesFile(marker)),
    }


def pickled_constant_config(members: Members, _marker: Path) -> Members:
    config = {"config": {"c": {"path_name": "opaque_obj_0", "use_pickle": True}}}
    return {**members, "data/constants/model_constants_config.json": json.dumps(config).encode()}


def pickled_weight(members: Members, marker: Path) -> Members:
    config = {"config": {"w": {"path_name": "weight_0", "is_param": True, "use_pickle": True, "tensor_meta": None}}}
    return {
        **members,
        "data/weights/model_weights_config.json": json.dumps(config).encode(),
        "data/weights/weight_0": _pickled(marker),
    }


def in_json(change: Callable[[Any, str], None]) -> Attack:
    """An attack that changes the program's JSON only; `change` gets it and code that makes the marker."""

    def attack(members: Members, marker: Path) -> Members:
        model = json.loads(members[MODEL])
        change(model, _code(marker))
        return {**members, MODEL: json.dumps(model).encode()}

    return attack


def _graph(model: Any) -> Any:
    return model["graph_module"]["graph"]


def _argument(model: Any, argument: Any) -> None:
    _graph(model)["nodes"][0]["inputs"][1]["arg"] = argument


def _expression(code: str) -> Any:
    return {"as_expr": {"expr_str": code, "hint": {"as_int": 3}}}


def _expression_in_a_size(model: Any, code: str) -> None:
    next(iter(_graph(model)["tensor_values"].values()))["sizes"][0] = _expression(code)


def _symbolic_number(model: Any, code: str) -> None:
    _graph(model)["sym_int_values"] = {"s0": _expression(code)}


def _guards(model: Any, code: str) -> None:
    model["guards_code"] = [f"{code} is not None"]


def _range_constraints(model: Any, code: str) -> None:
    model["range_constraints"] = {code: {"min_val": 0, "max_val": 3}}


def _calls(target: str) -> Callable[[Any, str], None]:
    def change(model: Any, code: str) -> None:
        node = _graph(model)["nodes"][0]
        node["target"] = target
        node["inputs"] = [{"name": "", "arg": {"as_string": code}, "kind": 1}]

    return change


def _target_only(target: str) -> Callable[[Any, str], None]:
    def change(model: Any, _code: str) -> None:
        _graph(model)["nodes"][0]["target"] = target

    return change


def _renamed_input(model: Any, code: str) -> None:
    # torch writes the names of inputs into a function's head, where a default value is run.
    old = _graph(model)["inputs"][0]["as_tensor"]["name"]
    changed = json.loads(json.dumps(model).replace(json.dumps(old), json.dumps(f"{old}={code}")))
    model.clear()
    model.update(changed)


def _foreign_module_in_metadata(model: Any, code: str) -> None:
    _graph(model)["nodes"][0]["extra"] = code


def _tree_of_a_class(model: Any, _code: str) -> None:
    signature = model["graph_module"]["module_call_graph"][0]["signature"]
    signature["in_spec"] = signature["in_spec"].replace("builtins.dict", "collections.namedtuple")


def _namedtuple(model: Any, _code: str) -> None:
    model["graph_module"]["treespec_namedtuple_fields"] = {"os.system": {"field_names": ["x"]}}


def _huge_size(model: Any, _code: str) -> None:
    next(iter(_graph(model)["tensor_values"].values()))["sizes"][0] = {"as_int": 1 << 40}


def _huge_product(model: Any, _code: str) -> None:
    next(iter(_graph(model)["tensor_values"].values()))["sizes"] = [{"as_int": 1 << 20}, {"as_int": 1 << 20}]


def _second_definition(model: Any, _code: str) -> None:
    graph = _graph(model)
    graph["nodes"].append(graph["nodes"][0])


def _use_before_definition(model: Any, _code: str) -> None:
    graph = _graph(model)
    graph["nodes"].reverse()


def _other_signature(model: Any, _code: str) -> None:
    spec = model["graph_module"]["signature"]["input_specs"][0]
    spec["parameter"] = {"arg": spec.pop("user_input")["arg"]["as_tensor"], "parameter_name": "w"}


def _infinite_number(model: Any, _code: str) -> None:
    _argument(model, {"as_float": float("inf")})


def _number_beyond_float(model: Any, _code: str) -> None:
    _argument(model, {"as_float": 10**400})


def _signature_that_is_no_text(model: Any, _code: str) -> None:
    model["graph_module"]["module_call_graph"][0]["signature"]["in_spec"] = "\ud800"


def _on_a_graphics_card(model: Any, _code: str) -> None:
    next(iter(_graph(model)["tensor_values"].values()))["device"] = {"type": "cuda", "index": 0}


def _number_as_text(model: Any, code: str) -> None:
    _argument(model, {"as_float": code})


def _given(kind: str) -> Callable[[Any, str], None]:
    def change(model: Any, code: str) -> None:
        _argument(model, {kind: code})

    return change


# What is refused, and a piece of the reason.
ATTACKS: dict[str, tuple[Attack, str]] = {
    "pickled sample inputs": (sample_inputs, "sample inputs, which are a pickle"),
    "opaque constant": (opaque_constant, "opaque_obj_0"),
    "constant by pickle": (pickled_constant_config, "model_constants_config.json names weights or constants"),
    "weight by pickle": (pickled_weight, "weight_0"),
    "expression in a size": (in_json(_expression_in_a_size), "has a field 'as_expr'"),
    "symbolic number": (in_json(_symbolic_number), "sym_int_values is not empty"),
    "guards": (in_json(_guards), "guards_code is not empty"),
    "range constraints": (in_json(_range_constraints), "range_constraints is not empty"),
    "os.system as operator": (in_json(_calls("torch.os.system")), "operator 'torch.os.system'"),
    "eval as operator": (in_json(_calls("builtins.eval")), "operator 'builtins.eval'"),
    "aten.from_file": (in_json(_target_only("torch.ops.aten.from_file.default")), r"aten\.from_file"),
    "an operator with dots": (in_json(_target_only("torch.ops.aten.add.Tensor.__class__")), "__class__"),
    "a higher-order operator": (in_json(_target_only("torch.ops.higher_order.cond")), "higher_order"),
    "an input's name with a default": (in_json(_renamed_input), "is not allowed as a name"),
    "an unknown field": (in_json(_foreign_module_in_metadata), "a node has a field 'extra'"),
    "a class in the call signature": (in_json(_tree_of_a_class), "in_spec is no flat tuple"),
    "named tuples": (in_json(_namedtuple), "treespec_namedtuple_fields is not empty"),
    "a huge dimension": (in_json(_huge_size), "not a number up to"),
    "a huge tensor": (in_json(_huge_product), "more than 268435456 elements"),
    "a name twice": (in_json(_second_definition), "have the name"),
    "a tensor before it is made": (in_json(_use_before_definition), "before it is there"),
    "a parameter": (in_json(_other_signature), "input_specs is not the graph's list"),
    "an infinite number": (in_json(_infinite_number), "holds the number Infinity"),
    "a number beyond float": (in_json(_number_beyond_float), "in place of a number"),
    "a signature that is no text": (in_json(_signature_that_is_no_text), "in_spec is no readable JSON"),
    "another device": (in_json(_on_a_graphics_card), "only the CPU is"),
    "text in place of a number": (in_json(_number_as_text), "in place of a number"),
    "a string": (in_json(_given("as_string")), "given 'as_string'"),
    "a sub-graph": (in_json(_given("as_graph")), "given 'as_graph'"),
    "an operator as argument": (in_json(_given("as_operator")), "given 'as_operator'"),
    "a custom object": (in_json(_given("as_custom_obj")), "given 'as_custom_obj'"),
    "an expression as argument": (in_json(_given("as_expr")), "given 'as_expr'"),
}
