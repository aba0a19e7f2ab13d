"""The operators that `.pt2` programs may call, each with the rule that keeps it inside its arguments' memory.

torch computes the shape of a result from its arguments, but many of its operators believe that further arguments, such
as a bias or a gradient, fit to them. A rule says what they must be. `pt2_values` checks the rules of a graph; this
module needs no torch.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from fedlens_proto.programs.pt2_calls import FLOAT, Call, Value

MAX_STEP = 1024
"""The largest stride, dilation and padding: oneDNN's convolutions leave their memory with strides of 16,384."""

_SAME_ELEMENTS = ("view.default", "detach.default", "squeeze.dim", "unsqueeze.default", "_unsafe_view.default")

Check = Callable[[Call], None]
Work = Callable[[Call, Sequence[Value]], int]


def _elements(call: Call, results: Sequence[Value]) -> int:
    return sum(prod(value.shape) for value in (*call.tensors, *results))


@dataclass(frozen=True)
class Rule:
    """The rule of some operators.

    Attributes:
        operators: Their names.
        why: The reason that no arguments make them touch memory that is not theirs, for people.
        check: Refuses arguments.
        work: Multiplications, or elements read and written, of a call.
        copies: Whether they copy arguments that are not contiguous.
    """

    operators: tuple[str, ...]
    why: str
    check: Check = lambda call: None
    work: Work = _elements
    copies: bool = False


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split())


def _bmm(call: Call) -> None:
    batch, _, inner = call.shape("self", 3)
    call.expect("mat2", (batch, inner, None))


def _bmm_work(call: Call, results: Sequence[Value]) -> int:
    return prod(results[0].shape) * call.tensor("self").shape[2]


def _padded(call: Call) -> None:
    call.numbers("pad", least=0, counts=tuple(range(0, 2 * len(call.tensor("self").shape) + 1, 2)))


def _float_arguments(call: Call) -> None:
    for name in ("grad_output", "self"):
        call.expect(name, call.tensor(name).shape)


def _log_softmax(call: Call) -> None:
    call.expect("self", call.tensor("self").shape)
    if call.arguments["half_to_float"]:
        call.refuse("half_to_float", True, False)


def _log_softmax_backward(call: Call) -> None:
    for name in ("output", "grad_output"):
        call.expect(name, call.tensor("output").shape)


def _convolution(call: Call) -> None:
    _, channels, *_ = call.shape("input", 4)
    outer, inner, *_ = call.shape("weight", 4)
    for name, least in (("stride", 1), ("dilation", 1), ("padding", 0), ("output_padding", 0)):
        call.numbers(name, least, MAX_STEP)
    most = _pair(call, "stride") if call.arguments["transposed"] else (1, 1)
    if any(more >= step for more, step in zip(_pair(call, "output_padding"), most, strict=True)):
        call.refuse("output_padding", call.arguments["output_padding"], f"less than {list(most)}")
    (groups,) = call.numbers("groups", 1, counts=(1,))
    transposed = call.arguments["transposed"]
    taken, given = (outer, inner * groups) if transposed else (inner * groups, outer)
    if taken != channels or (outer % groups):
        call.refuse("weight", call.arguments["weight"], f"one for {channels} channels in {groups} groups")
    if "bias" in call.arguments:
        call.expect("bias", (given,), optional=True)
    else:
        if call.arguments["bias_sizes"] not in (None, [0], [given]):
            call.refuse("bias_sizes", call.arguments["bias_sizes"], [given])
        call.expect("grad_output", _convolved(call, given))


def _convolved(call: Call, channels: int) -> tuple[int, ...]:
    """The shape of a convolution's result."""
    names = ("stride", "padding", "dilation", "output_padding")
    (count, _, *sides), kernel = call.tensor("input").shape, call.tensor("weight").shape[2:]
    settings = zip(sides, kernel, *(_pair(call, name) for name in names), strict=True)
    return (
        count,
        channels,
        *(
            (side - 1) * stride - 2 * pad + dilation * (reach - 1) + more + 1
            if call.arguments["transposed"]
            else (side + 2 * pad - dilation * (reach - 1) - 1) // stride + 1
            for side, reach, stride, pad, dilation, more in settings
        ),
    )


def _convolution_work(call: Call, results: Sequence[Value]) -> int:
    given = results[0] if "bias" in call.arguments else call.tensor("grad_output")
    positions = call.tensor("input") if call.arguments["transposed"] else given
    passes = 1 if "bias" in call.arguments else 2
    return passes * prod(positions.shape) * prod(call.tensor("weight").shape[1:])


def _pool_settings(call: Call) -> None:
    call.shape("self", 4)
    call.numbers("kernel_size", 1)
    call.numbers("dilation", 1, MAX_STEP)
    call.numbers("padding", 0, MAX_STEP)
    if call.arguments["stride"] != []:
        call.numbers("stride", 1, MAX_STEP)
    # Of a window without an element of its plane, torch gives the index of what would come next, beside it.
    if any(step > 1 and pad for step, pad in zip(_pair(call, "dilation"), _pair(call, "padding"), strict=True)):
        call.refuse("dilation", call.arguments["dilation"], "1 where there is padding")


def _max_pool_backward(call: Call) -> None:
    _pool_settings(call)
    indices = call.tensor("indices")
    forward = _pooled(call, "indices", indices)
    call.same(forward, "self", "dilation", "ceil_mode")
    for name in ("kernel_size", "stride", "padding"):
        if _pair(call, name) != _pair(forward, name):
            call.refuse(name, call.arguments[name], f"that of {forward.node!r}, {forward.arguments[name]}")
    call.expect("grad_output", indices.shape)


def _pooled(call: Call, name: str, indices: Value) -> Call:
    """The max pooling that made an argument, unchanged."""
    forward = indices.maker
    if forward is None or forward.operator != "max_pool2d_with_indices.default" or indices.place != 1:
        call.refuse(name, call.arguments[name], "the indices of max pooling, unchanged")
    return forward


def _pair(call: Call, name: str) -> tuple[int, ...]:
    found = call.arguments[name]
    listed = (found if isinstance(found, list) else [found]) or call.arguments["kernel_size"]
    return (listed[0], listed[-1])


def _pool_work(call: Call, results: Sequence[Value]) -> int:
    reach = _pair(call, "kernel_size")
    return _elements(call, results) + prod(call.tensor("self").shape) + prod(results[0].shape) * prod(reach)


def _average_pool(call: Call) -> None:
    call.shape("self", 4)
    call.numbers("output_size", 1, counts=(2,))


def _average_pool_backward(call: Call) -> None:
    count, channels, *_ = call.shape("self", 4)
    call.expect("grad_output", (count, channels, None, None))


def _average_pool_work(call: Call, results: Sequence[Value]) -> int:
    # Windows overlap by at most one row and one column at each end.
    small = (call.tensor("grad_output") if "grad_output" in call.arguments else results[0]).shape
    large = call.tensor("self").shape
    return prod(small) * prod(a // b + 2 for a, b in zip(large[2:], small[2:], strict=True))


def _batch_norm(call: Call) -> None:
    found = call.tensor("input")
    if len(found.shape) < 2 or found.dtype != FLOAT:
        call.refuse("input", found, "float32 of two dimensions or more")
    channels = (found.shape[1],)
    trains = call.arguments.get("training", call.arguments.get("train"))
    for name in ("weight", "bias", "running_mean", "running_var", "save_mean", "save_invstd"):
        if name in call.arguments:
            needed = name.startswith("save") if trains else name.startswith("running")
            call.expect(name, channels, optional=not needed)
    mean, variance = call.arguments["running_mean"], call.arguments["running_var"]
    if (mean is None) != (variance is None):
        call.refuse("running_mean", mean or "nothing", "there if running_var is, and only then")
    if "grad_out" in call.arguments:
        call.expect("grad_out", found.shape)
    elif trains:
        for name in ("running_mean", "running_var"):
            value = call.arguments[name]
            if value is not None and (value.maker is None or value.maker.operator != "clone.default"):
                call.refuse(name, "a tensor that the call would change", "a clone of one")


def _gather(call: Call) -> None:
    index, source = call.tensor("index"), call.tensor("self")
    while index.maker is not None and index.maker.operator in _SAME_ELEMENTS:
        index = index.maker.tensor("self")
    bound = prod(_pooled(call, "index", index).tensor("self").shape[2:])
    (dimension,) = call.numbers("dim", -len(source.shape), counts=(1,))
    if source.shape[dimension : dimension + 1 or None] < (bound,):
        call.refuse("self", source, f"{bound} or more elements in dimension {dimension}, as the pooled planes have")


_ITERATES = "torch goes through all tensors by the shape to which it broadcasts them, and makes the result in it"

RULES = (
    Rule(
        _names("""
        _to_copy.default abs.default add.Tensor addcmul.default bitwise_and.Tensor clamp.default clone.default
        div.Scalar div.Tensor eq.Tensor exp.default floor.default ge.Scalar gt.Scalar hardsigmoid.default
        hardsigmoid_backward.default hardswish.default hardswish_backward.default hardtanh.default log.default lt.Scalar
        maximum.default minimum.default mul.Scalar mul.Tensor ne.Tensor neg.default pow.Tensor_Scalar pow.Tensor_Tensor
        relu.default round.default rsqrt.default rsub.Scalar sigmoid.default silu.default sqrt.default sub.Tensor
        where.self
        """),
        f"Elementwise: {_ITERATES}.",
    ),
    Rule(
        _names("threshold_backward.default"),
        "Elementwise on float32 tensors: of whole numbers it makes a result of another type than torch predicts.",
        _float_arguments,
    ),
    Rule(
        _names("arange.default ones.default ones_like.default scalar_tensor.default zeros.default zeros_like.default"),
        "They make a tensor of a size that is limited like every size.",
    ),
    Rule(
        _names("""
        _unsafe_view.default detach.default expand.default permute.default select.int slice.Tensor squeeze.dim t.default
        transpose.int unsqueeze.default view.default
        """),
        "Views: dimensions and indices are numbers in the graph; the part that is seen must lie within the tensor's "
        "memory.",
        work=lambda call, results: 1,
    ),
    Rule(
        _names("amax.default mean.dim sum.default sum.dim_IntList"),
        f"Reductions: {_ITERATES}; dimensions are numbers in the graph, each once and in range.",
    ),
    Rule(
        _names("cat.default stack.default"),
        "All sizes but the one along which tensors are joined are equal; the result is as long as its parts together.",
        copies=True,
    ),
    Rule(
        _names("constant_pad_nd.default"),
        "At most two numbers a dimension, 0 or more; the result has the padded size.",
        _padded,
        copies=True,
    ),
    Rule(
        _names("_log_softmax.default"),
        "One float32 tensor, and a dimension in range; the result has its shape.",
        _log_softmax,
        copies=True,
    ),
    Rule(
        _names("_log_softmax_backward_data.default"),
        "torch does not compare the two tensors: both must be float32 of one shape.",
        _log_softmax_backward,
        copies=True,
    ),
    Rule(
        _names("bmm.default"),
        "Both are float32 of three dimensions, with as many matrices, and inner sizes that fit.",
        _bmm,
        _bmm_work,
        copies=True,
    ),
    Rule(
        _names("convolution.default convolution_backward.default"),
        "Two-dimensional, float32; the weight has the input's channels in its groups, the bias an entry for each of "
        "the result's. A gradient must have the shape of the forward operator's result, which torch does not check. "
        f"Stride, padding and dilation are at most {MAX_STEP}: with 16384, kernels of CPUs leave their memory.",
        _convolution,
        _convolution_work,
        copies=True,
    ),
    Rule(
        _names("max_pool2d_with_indices.default"),
        "float32 of four dimensions, window and stride of 1 or more. A window with gaps has no padding: it might lie "
        "beside its plane, and its index with it. So each index that it makes lies within its plane.",
        _pool_settings,
        _pool_work,
        copies=True,
    ),
    Rule(
        _names("max_pool2d_with_indices_backward.default"),
        "It writes where its indices say, unchecked. So they must be, unchanged, those of the forward operator with "
        "the same input and settings, and the gradient must have their shape.",
        _max_pool_backward,
        _pool_work,
        copies=True,
    ),
    Rule(
        _names("_adaptive_avg_pool2d.default"),
        "float32 of four dimensions to sizes of 1 or more; windows are computed from both sizes.",
        _average_pool,
        _average_pool_work,
        copies=True,
    ),
    Rule(
        _names("_adaptive_avg_pool2d_backward.default"),
        "torch does not compare the two tensors: the gradient must have as many images and channels as the input.",
        _average_pool_backward,
        _average_pool_work,
        copies=True,
    ),
    Rule(
        _names("native_batch_norm.default native_batch_norm_backward.default"),
        "torch believes that every vector has an entry for each channel: each must. A gradient has the input's shape. "
        "In training the call changes the running statistics, so those must be clones.",
        _batch_norm,
        copies=True,
    ),
    Rule(
        _names("gather.default"),
        "Its index must be, but for views, the indices of max pooling, and the dimension as long as the pooled planes.",
        _gather,
        copies=True,
    ),
)
"""Every operator of programs of this version: steps, predictions, views, and the backbones by name, also quantised.
None opens a file, returns uninitialised memory, or has a list as its result."""

BY_OPERATOR: Mapping[str, Rule] = {name: rule for rule in RULES for name in rule.operators}
