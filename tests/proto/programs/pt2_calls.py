"""Programs written down call by call, and those among them that would leave their tensors' memory or take all of it."""

import json
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import torch

from tests.proto.programs.pt2_attacks import MODEL, genuine, members_of, pack

FLOAT, INDEX, TRUTH = 7, 5, 12
Tensors = Mapping[str, Any]
"""Sizes by name; `(type, sizes)` of another element type than float32; `(type, sizes, strides)` with such strides."""
Call = tuple[str, Mapping[str, Any], Tensors]
"""An operator, its arguments by name (tensors as text) and its results; None: one that the call leaves out."""


@cache
def _members() -> dict[str, bytes]:
    return members_of(genuine())


def program(inputs: Tensors, calls: Sequence[Call], results: Sequence[str]) -> bytes:
    """The `.pt2` of these calls, as torch would write it."""
    members = _members()
    model = json.loads(members[MODEL])
    given, returned = ([{"as_tensor": {"name": name}} for name in names] for names in (inputs, results))
    described = {name: form for _, _, made in calls for name, form in made.items()} | dict(inputs)
    module = model["graph_module"]
    module["graph"] |= {
        "inputs": given,
        "outputs": returned,
        "nodes": [_node(*call) for call in calls],
        "tensor_values": {name: _described(form) for name, form in described.items() if form is not None},
    }
    module["signature"] = {
        "input_specs": [{"user_input": {"arg": each}} for each in given],
        "output_specs": [{"user_output": {"arg": each}} for each in returned],
    }
    leaf = {"type": None, "context": None, "children_spec": []}
    empty = {"type": "builtins.dict", "context": "[]", "children_spec": []}
    arguments, outputs = (
        {"type": "builtins.tuple", "context": "null", "children_spec": children}
        for children in ([leaf] * len(given), [leaf] * len(returned))
    )
    both = {"type": "builtins.tuple", "context": "null", "children_spec": [arguments, empty]}
    module["module_call_graph"][0]["signature"] |= {
        "in_spec": json.dumps([1, both]),
        "out_spec": json.dumps([1, outputs]),
        "forward_arg_names": list(inputs),
    }
    return pack({**members, MODEL: json.dumps(model).encode()})


def _node(operator: str, arguments: Mapping[str, Any], results: Tensors) -> dict[str, Any]:
    return {
        "target": f"torch.ops.aten.{operator}",
        "inputs": [{"name": name, "arg": _argument(value), "kind": 2} for name, value in arguments.items()],
        "outputs": [
            {"as_none": True} if form is None else {"as_tensor": {"name": name}} for name, form in results.items()
        ],
        "metadata": {},
        "is_hop_single_tensor_return": None,
        "name": None,
    }


def _argument(value: Any) -> dict[str, Any]:
    match value:
        case None:
            return {"as_none": True}
        case bool():
            return {"as_bool": value}
        case int():
            return {"as_int": value}
        case float():
            return {"as_float": value}
        case str():
            return {"as_tensor": {"name": value}}
        case torch.dtype():
            return {"as_scalar_type": {torch.float32: FLOAT, torch.int64: INDEX}[value]}
        case [str(), *_]:
            return {"as_tensors": [{"name": name} for name in value]}
        case [bool(), *_]:
            return {"as_bools": value}
    return {"as_ints": value}


def _described(form: Any) -> dict[str, Any]:
    dtype, sizes, *strides = form if len(form) > 1 and isinstance(form[1], tuple) else (FLOAT, form)
    found = strides[0] if strides else torch.empty(sizes, device="meta").stride()
    return {
        "dtype": dtype,
        "sizes": [{"as_int": size} for size in sizes],
        "requires_grad": False,
        "device": {"type": "cpu", "index": None},
        "strides": [{"as_int": stride} for stride in found],
        "storage_offset": {"as_int": 0},
        "layout": 7,
    }


IMAGE = {"x": (2, 3, 8, 8)}
WINDOW = {"kernel_size": [2, 2], "stride": [2, 2], "padding": [0, 0], "dilation": [1, 1], "ceil_mode": False}
POOLED: Call = (
    "max_pool2d_with_indices.default",
    {"self": "x", **WINDOW},
    {"p": (2, 3, 4, 4), "i": (INDEX, (2, 3, 4, 4))},
)
CONVOLUTION = {
    "input": "x",
    "weight": "w",
    "bias": None,
    "stride": [1, 1],
    "padding": [0, 0],
    "dilation": [1, 1],
    "transposed": False,
    "output_padding": [0, 0],
    "groups": 1,
}
GRADIENT = {name: value for name, value in CONVOLUTION.items() if name != "bias"} | {"output_mask": [True, True, False]}
STATISTICS = {"running_mean": "m", "running_var": "v", "momentum": 0.1, "eps": 1e-5}
NORM = {"input": "x", "weight": "w", "bias": "b", **STATISTICS, "training": False}
NORMED = {"y": (2, 3, 8, 8), "s": (0,), "t": (0,)}
VECTORS = {name: (3,) for name in "wbmv"}
BACK = {"grad_out": "g", "input": "x", "weight": "w", "running_mean": "m", "running_var": "v"}
BACK |= {"save_mean": "m", "save_invstd": "v", "train": True, "eps": 1e-5, "output_mask": [True, True, True]}


def _norm(**changed: Any) -> tuple[Tensors, list[Call]]:
    return {**IMAGE, **VECTORS, **changed}, [("native_batch_norm.default", NORM, NORMED)]


def _norm_back(**changed: Any) -> tuple[Tensors, list[Call]]:
    made = {"y": (2, 3, 8, 8), "s": (3,), "t": (3,)}
    return {**IMAGE, **VECTORS, "g": (2, 3, 8, 8), **changed}, [("native_batch_norm_backward.default", BACK, made)]


def _pool_back(inputs: Tensors, *before: Call, **changed: Any) -> tuple[Tensors, list[Call]]:
    given = {"grad_output": "g", "self": "x", **WINDOW, "indices": "i", **changed}
    shape = {**IMAGE, **inputs}[given["self"]]
    back: Call = ("max_pool2d_with_indices_backward.default", given, {"y": shape})
    return {**IMAGE, "g": (2, 3, 4, 4), **inputs}, [*before, back]


def _convolved(shape: Any, inputs: Tensors, **changed: Any) -> tuple[Tensors, list[Call]]:
    call: Call = ("convolution.default", {**CONVOLUTION, **changed}, {"y": shape})
    return {**IMAGE, "w": (4, 3, 3, 3), **inputs}, [call]


def _convolved_back(inputs: Tensors, **changed: Any) -> tuple[Tensors, list[Call]]:
    made = {"y": (2, 3, 8, 8), "s": (4, 3, 3, 3), "t": None}
    given = {"grad_output": "g", "bias_sizes": None, **GRADIENT, **changed}
    return {**IMAGE, "w": (4, 3, 3, 3), "g": (2, 4, 6, 6), **inputs}, [("convolution_backward.default", given, made)]


def _one(operator: str, inputs: Tensors, form: Any, **arguments: Any) -> tuple[Tensors, list[Call]]:
    return inputs, [(operator, arguments, {"y": form})]


def _doubled(times: int, start: int) -> list[Call]:
    """Tensors that each join the one before to itself, all of them used at the end."""
    sizes = [start << n for n in range(times + 1)]
    return [("cat.default", {"tensors": [f"t{n}", f"t{n}"]}, {f"t{n + 1}": (sizes[n + 1],)}) for n in range(times)]


def _kept(count: int, size: int) -> list[Call]:
    """Tensors of which the greatest is taken once all are there."""
    made: list[Call] = [("ones.default", {"size": [size]}, {f"t{n}": (size,)}) for n in range(count)]
    names = ["t0", *(f"m{n}" for n in range(1, count - 1)), "y"]
    return [
        *made,
        *(("maximum.default", {"self": names[n - 1], "other": f"t{n}"}, {names[n]: (size,)}) for n in range(1, count)),
    ]


_MULTIPLIED: list[Call] = [
    ("bmm.default", {"self": f"t{n}", "mat2": f"t{n}"}, {f"t{n + 1}": (1, 8192, 8192)}) for n in range(3)
]
_WILD: Call = ("_to_copy.default", {"self": "f", "dtype": torch.int64}, {"i": (INDEX, (2, 3, 4, 4))})
_ADDED: Call = ("add.Tensor", {"self": "j", "other": 1_000_000}, {"i": (INDEX, (2, 3, 4, 4))})
_INTO_J: Call = (POOLED[0], POOLED[1], {"p": (2, 3, 4, 4), "j": (INDEX, (2, 3, 4, 4))})

# Inputs and calls, the last of which makes `y`, and a piece of the reason why the program is refused.
ATTACKS: dict[str, tuple[tuple[Tensors, list[Call]], str]] = {
    "batch norm reads a bias that is too short": (
        (
            {"x": (1, 48_000, 1, 1), **dict.fromkeys("wmv", (48_000,)), "b": (150,)},
            [("native_batch_norm.default", NORM, {"y": (1, 48_000, 1, 1), "s": (0,), "t": (0,)})],
        ),
        r"bias is float32\[150\], allowed is float32\[48000\]",
    ),
    "a threshold's gradient of whole numbers": (
        (
            {"x": (INDEX, (4,))},
            [("threshold_backward.default", {"grad_output": "x", "self": "x", "threshold": 0}, {"y": (INDEX, (4,))})],
        ),
        r"grad_output is int64\[4\], allowed is float32",
    ),
    "a weight of one entry": (_norm(w=(1,)), r"weight is float32\[1\], allowed is float32\[3\]"),
    "a mean that is too short": (_norm(m=(2,)), "running_mean is"),
    "a variance of two dimensions": (_norm(v=(3, 1)), "running_var is"),
    "a weight of whole numbers": (_norm(w=(INDEX, (3,))), "weight is int64"),
    "batch norm of one dimension": (_norm(x=(3,)), "two dimensions or more"),
    "batch norm that changes an input": (
        (
            {**IMAGE, **VECTORS},
            [("native_batch_norm.default", {**NORM, "training": True}, {"y": (2, 3, 8, 8), "s": (3,), "t": (3,)})],
        ),
        "running_mean is a tensor that the call would change",
    ),
    **{
        # torch takes these for false; then `s` and `t` have no entries, whatever the file says.
        f"batch norm in training by {flag}": (
            (
                {**IMAGE, **VECTORS},
                [("native_batch_norm.default", {**NORM, "training": flag}, {**NORMED, "s": (3,), "t": (3,)})],
            ),
            "argument training is given 'as_(int|float|none)', allowed is bool",
        )
        for flag in (0, 0.0, None)
    },
    "batch norm without statistics": (
        (
            {**IMAGE, **VECTORS},
            [("native_batch_norm.default", {**NORM, "running_mean": None}, NORMED)],
        ),
        "running_mean is nothing",
    ),
    "batch norm in training with one statistic of two": (
        (
            {**IMAGE, **VECTORS},
            [
                ("clone.default", {"self": "v"}, {"c": (3,)}),
                (
                    "native_batch_norm.default",
                    {**NORM, "training": True, "running_mean": None, "running_var": "c"},
                    {"y": (2, 3, 8, 8), "s": (3,), "t": (3,)},
                ),
            ],
        ),
        "running_mean is nothing, allowed is there if running_var is",
    ),
    "a gradient of batch norm that is too small": (_norm_back(g=(2, 3, 4, 4)), "grad_out is"),
    "a saved mean that is too short": (_norm_back(m=(1,)), "running_mean is|save_mean is"),
    "a saved deviation of another type": (_norm_back(v=(INDEX, (3,))), "is int64"),
    "max pooling back by indices that come in": (
        _pool_back({"i": (INDEX, (2, 3, 4, 4))}),
        "indices is .*, allowed is the indices of max pooling, unchanged",
    ),
    "max pooling back by indices from a value": (_pool_back({"f": (2, 3, 4, 4)}, _WILD), "indices of max pooling"),
    "max pooling back by changed indices": (_pool_back({}, _INTO_J, _ADDED), "indices of max pooling"),
    "max pooling back into a smaller input": (_pool_back({"z": (2, 3, 2, 2)}, POOLED, self="z"), "self is"),
    "max pooling back with another window": (
        _pool_back({}, POOLED, kernel_size=[1, 1]),
        "kernel_size is .* that of 'p'",
    ),
    "max pooling back with a small gradient": (_pool_back({"g": (1, 1, 1, 1)}, POOLED), "grad_output is"),
    "max pooling back by the pooled values": (_pool_back({}, POOLED, indices="p"), "indices of max pooling"),
    "a window of no pixels": (
        _one("max_pool2d_with_indices.default", IMAGE, (2, 3, 4, 4), self="x", kernel_size=[0, 0]),
        "kernel_size is .* at least 1",
    ),
    "a window that lies beside its plane": (  # at rows -1 and 2 of rows 0 and 1
        _one(
            "max_pool2d_with_indices.default",
            {"x": (3, 4, 2, 3)},
            (3, 4, 1, 1),
            self="x",
            kernel_size=[2, 2],
            stride=[2, 2],
            padding=[1, 0],
            dilation=[3, 2],
        ),
        "dilation is .* 1 where there is padding",
    ),
    "a stride of 0": (
        _one("max_pool2d_with_indices.default", IMAGE, (2, 3, 4, 4), self="x", kernel_size=[2, 2], stride=[0, 0]),
        "stride is .* at least 1",
    ),
    "average pooling back for more channels": (
        _one(
            "_adaptive_avg_pool2d_backward.default",
            {**IMAGE, "g": (2, 1, 2, 2)},
            (2, 3, 8, 8),
            grad_output="g",
            self="x",
        ),
        "grad_output is",
    ),
    "average pooling back for fewer images": (
        _one(
            "_adaptive_avg_pool2d_backward.default",
            {**IMAGE, "g": (1, 3, 2, 2)},
            (2, 3, 8, 8),
            grad_output="g",
            self="x",
        ),
        "grad_output is",
    ),
    "average pooling to nothing": (
        _one("_adaptive_avg_pool2d.default", IMAGE, (2, 3, 0, 0), self="x", output_size=[0, 0]),
        "output_size is",
    ),
    "a loss that reads at a label": (
        (
            {"x": (2, 3), "l": (INDEX, (2,))},
            [
                (
                    "nll_loss_forward.default",
                    {"self": "x", "target": "l", "weight": None, "reduction": 0, "ignore_index": -100},
                    {"y": (2,), "s": ()},
                )
            ],
        ),
        "nll_loss_forward.default' is not among",
    ),
    "a loss that writes at a label": (
        (
            {"x": (2, 3), "g": (2,), "l": (INDEX, (2,)), "s": ()},
            [
                (
                    "nll_loss_backward.default",
                    {
                        **{"grad_output": "g", "self": "x", "target": "l", "weight": None},
                        **{"reduction": 0, "ignore_index": -100, "total_weight": "s"},
                    },
                    {"y": (2, 3)},
                )
            ],
        ),
        "nll_loss_backward.default' is not among",
    ),
    "gathering at an input": (
        _one("gather.default", {"x": (4,), "i": (INDEX, (4,))}, (4,), self="x", dim=0, index="i"),
        "index is",
    ),
    "gathering from a smaller plane": (
        (
            {**IMAGE, "z": (2, 3, 4, 4)},
            [POOLED, ("gather.default", {"self": "z", "dim": 3, "index": "i"}, {"y": (2, 3, 4, 4)})],
        ),
        "self is .* 64 or more elements in dimension 3",
    ),
    "an index operator": (
        _one("index.Tensor", {"x": (4,), "i": (INDEX, (4,))}, (4,), self="x", indices=["i"]),
        "'torch.ops.aten.index.Tensor' is not among",
    ),
    "a scatter": (
        _one(
            "scatter.src",
            {"x": (4,), "i": (INDEX, (4,))},
            (4,),
            self="x",
            dim=0,
            index="i",
            src="x",
        ),
        r"scatter\.src' is not among",
    ),
    "a view with strides of its own": (
        _one("as_strided.default", {"x": (4,)}, (1000,), self="x", size=[1000], stride=[1]),
        "as_strided.default' is not among",
    ),
    "a convolution with a bias that is too short": (
        _convolved((2, 4, 6, 6), {"b": (1,)}, bias="b"),
        r"bias is float32\[1\], allowed is float32\[4\]",
    ),
    "a convolution in no groups": (_convolved((2, 4, 6, 6), {}, groups=0), "groups is 0"),
    "a convolution with too many groups": (_convolved((2, 4, 6, 6), {}, groups=3), "weight is"),
    "a convolution of stride 0": (_convolved((2, 4, 6, 6), {}, stride=[0, 1]), "stride is"),
    "a convolution of long strides": (
        _convolved((2, 4, 6, 1), {}, stride=[1, 16384]),
        "stride is .* at least 1 and at most 1024",
    ),
    "a convolution of far padding": (_convolved((2, 4, 6, 6), {}, padding=[0, 1025]), "padding is .* at most 1024"),
    "a convolution of wide gaps": (_convolved((2, 4, 6, 6), {}, dilation=[1025, 1]), "dilation is .* at most 1024"),
    "a convolution of three dimensions": (_convolved((2, 4, 6), {"x": (2, 3, 8)}), "input is"),
    "a convolution with negative padding": (_convolved((2, 4, 4, 4), {}, padding=[-1, -1]), "padding is"),
    "a gradient of a convolution that is too small": (
        _convolved_back({"g": (2, 4, 1, 1)}),
        r"grad_output is float32\[2, 4, 1, 1\], allowed is float32\[2, 4, 6, 6\]",
    ),
    "a gradient of a convolution of few images": (_convolved_back({"g": (1, 4, 6, 6)}), "grad_output is"),
    "a gradient for a bias of many entries": (_convolved_back({}, bias_sizes=[1_000_000]), "bias_sizes is"),
    "a softmax back from a small gradient": (
        _one(
            "_log_softmax_backward_data.default",
            {"x": (64, 64), "g": (1, 1)},
            (64, 64),
            grad_output="g",
            output="x",
            dim=1,
            input_dtype=torch.float32,
        ),
        "grad_output is",
    ),
    "a softmax of half precision": (
        _one("_log_softmax.default", {"x": (4, 4)}, (4, 4), self="x", dim=1, half_to_float=True),
        "half_to_float is True",
    ),
    "a product of matrices that do not fit": (
        _one("bmm.default", {"x": (1, 2, 3), "z": (1, 4, 5)}, (1, 2, 5), self="x", mat2="z"),
        "mat2 is",
    ),
    "a product of whole numbers": (
        _one("bmm.default", {"x": (INDEX, (1, 2, 2))}, (INDEX, (1, 2, 2)), self="x", mat2="x"),
        "self is int64",
    ),
    "a view of more elements": (_one("view.default", {"x": (4,)}, (1000,), self="x", size=[1000]), "impossible"),
    "a selection out of range": (
        _one("select.int", {"x": (4, 4)}, (4,), self="x", dim=0, index=9),
        "impossible",
    ),
    "a permutation with a dimension twice": (
        _one("permute.default", {"x": (4, 4)}, (4, 4), self="x", dims=[0, 0]),
        "impossible",
    ),
    "an expansion of more than one element": (
        _one("expand.default", {"x": (4,)}, (FLOAT, (8,), (0,)), self="x", size=[8]),
        "impossible",
    ),
    "cutting by negative padding": (
        _one("constant_pad_nd.default", {"x": (4,)}, (2,), self="x", pad=[-1, -1]),
        "pad is",
    ),
    "an empty tensor": (
        (
            {"x": (4,)},
            [
                ("slice.Tensor", {"self": "x", "dim": 0, "start": 2, "end": 2}, {"z": (FLOAT, (0,), (1,))}),
                ("sum.default", {"self": "z"}, {"y": ()}),
            ],
        ),
        "not empty|is float32",
    ),
    "a result that is larger than it says": (
        _one("ones.default", {"x": (1,)}, (1,), size=[1 << 28]),
        r"is float32\[268435456\] in strides \[1\], but the program describes it as float32\[1\]",
    ),
    "a result of another type": (_one("gt.Scalar", {"x": (4,)}, (4,), self="x", other=0), r"is bool\[4\]"),
    "a result with other strides": (
        _one("t.default", {"x": (2, 3)}, (3, 2), self="x"),
        r"strides \[1, 3\], but the program describes",
    ),
    "an input with strides of its own": (
        _one("relu.default", {"x": (FLOAT, (4, 4), (0, 0))}, (4, 4), self="x"),
        r"strides \[4, 1\], but the program describes it as float32\[4, 4\] in strides \[0, 0\]",
    ),
    "a tensor of many dimensions": (_one("relu.default", {"x": (1,) * 70}, (1,) * 70, self="x"), "up to 8"),
    "a number where a tensor should be": (
        _one("max_pool2d_with_indices.default", IMAGE, (2, 3, 4, 4), self=7, kernel_size=[2, 2]),
        "self is 7",
    ),
    "an argument that the operator lacks": (
        _one("relu.default", {"x": (4,)}, (4,), self="x", out="x"),
        "an argument is 'out'",
    ),
    "an argument left out": (_one("add.Tensor", {"x": (4,)}, (4,), self="x"), "argument other is missing"),
    "results that nobody makes": (
        ({"x": (4,)}, [("relu.default", {"self": "x"}, {"y": (4,), "s": (4,)})]),
        "the number of its results is 2, allowed is 1",
    ),
    "memory that is pinned": (
        _one("ones.default", {"x": (1,)}, (4,), size=[4], pin_memory=True),
        "pin_memory is True",
    ),
    "many tensors at once": ((IMAGE, _kept(9, 1 << 28)), "bytes of memory; at most"),
    "tensors that double": (({"t0": (1 << 20,)}, [*_doubled(9, 1 << 20)]), "not a number up to 268435456"),
    "hours of products": (
        ({"t0": (1, 8192, 8192)}, _MULTIPLIED),
        "the work up to here is",
    ),
}
