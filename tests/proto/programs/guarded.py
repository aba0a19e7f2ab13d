"""Random programs that pass the vetting, run between pages of memory that nobody may touch.

    python -m tests.proto.programs.guarded SECONDS SEED

Each program is a few calls of allowed operators, with arguments that may not fit to each other and values that are
wild. What the vetting lets pass runs call by call. Every tensor that a call reads, and where torch takes it the tensor
that it writes, lies directly before or behind a page without access. A touch ends the process; the last line then has
the seed of that program.
"""

import ctypes
import logging
import mmap
import random
import sys
import time
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode

from fedlens_proto.errors import ProgramRefused
from fedlens_proto.programs import pt2_loading, pt2_values
from fedlens_proto.programs.pt2_rules import BY_OPERATOR, RULES
from tests.proto.programs.pt2_calls import Call, program

CALLS = 6
TRIES = 40
MOST = 4096  # elements
NUMBERS = {torch.uint8: 1, torch.int64: 5, torch.float32: 7, torch.bool: 12}
WILD = (0.0, -0.0, 1.0, -1.0, 1e30, -1e30, 1e-40, float("inf"), float("-inf"), float("nan"))
VECTORS = ("weight", "bias", "running_mean", "running_var", "save_mean", "save_invstd")
_libc = ctypes.CDLL(None, use_errno=True)


def guarded(like: Tensor, at_end: bool) -> Tensor:
    """A copy with the same strides, which a page without access follows, or precedes."""
    steps = zip(like.shape, like.stride(), strict=True)
    extent = 1 + sum((size - 1) * stride for size, stride in steps)
    length = extent * like.element_size()
    room = -(-length // mmap.PAGESIZE) * mmap.PAGESIZE
    memory = mmap.mmap(-1, room + 2 * mmap.PAGESIZE)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    for page in (start, start + mmap.PAGESIZE + room):
        if _libc.mprotect(ctypes.c_void_p(page), mmap.PAGESIZE, 0):
            raise OSError(ctypes.get_errno(), "mprotect")
    offset = mmap.PAGESIZE + (room - length if at_end else 0)
    flat = torch.frombuffer(memory, dtype=like.dtype, count=extent, offset=offset)
    flat.copy_(like.as_strided([extent], [1]))
    return flat.as_strided(like.shape, like.stride())


class Draw:
    """A random program in the making: calls, and tensors without content for what they give."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        draw = self._random.randint
        channels, more, side = draw(1, 4), draw(1, 4), draw(1, 9)
        image = (draw(1, 3), channels, side, draw(1, 9))
        self.inputs: dict[str, Any] = {
            "x": image,
            "z": image,
            "k": (more, channels, draw(1, 3), draw(1, 3)),
            "d": (channels, 1, draw(1, 3), draw(1, 3)),
            **{f"v{n}": (channels,) for n in range(4)},
            "u": (more,),
            "a": (more, draw(1, 4), side),
            "b": (more, side, draw(1, 4)),
            "g": (*image[:2], draw(1, 5), draw(1, 5)),
            "l": (5, (draw(1, 4),)),
            "i": (5, (*image[:2], draw(1, 5), draw(1, 5))),
            "c": (12, image),
        }
        types = {number: dtype for dtype, number in NUMBERS.items()}
        self._mode = FakeTensorMode(allow_fallback_kernels=False)
        # Training batch norm needs clones.
        self.calls: list[Call] = [("clone.default", {"self": f"v{n}"}, {f"m{n}": (channels,)}) for n in range(2)]
        self.known: dict[str, Tensor] = {}
        for name, form in self.inputs.items():
            number, shape = form if len(form) > 1 and isinstance(form[1], tuple) else (7, form)
            with self._mode:
                self.known[name] = torch.empty(shape, dtype=types[number])
        self.known |= {f"m{n}": self.known[f"v{n}"] for n in range(2)}

    def call(self) -> None:
        """Add a call that torch takes for tensors without content, whether or not a rule forbids it."""
        name = self._random.choice(self._random.choice(RULES).operators)
        packet, _, overload = name.partition(".")
        operator = getattr(getattr(torch.ops.aten, packet), overload)
        for _ in range(TRIES):
            given = {each.name: self._argument(each, packet) for each in operator._schema.arguments}
            if packet.endswith("_backward") and self._random.random() < 0.8:
                given |= self._of_forward(packet.removesuffix("_backward"), given)
            try:
                with self._mode:
                    found = operator(**{key: self._read(value) for key, value in given.items()})
            except Exception:  # most draws do not fit
                continue
            results = found if isinstance(found, tuple) else (found,)
            made = {f"t{len(self.calls)}_{place}": result for place, result in enumerate(results)}
            if not any(result is not None for result in results) or any(
                result is not None and result.numel() > MOST for result in results
            ):
                continue
            forms = {key: None if value is None else self._form(value) for key, value in made.items()}
            self.calls.append((name, {key: value for key, value in given.items() if key != "device"}, forms))
            self.known |= {key: value for key, value in made.items() if value is not None and value.numel()}
            return

    def _of_forward(self, packet: str, given: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments of a call, its indices, and a tensor of its result's shape, for its gradient."""
        calls = [call for call in self.calls if call[0].partition(".")[0] == packet]
        if not calls:
            return {}
        _, arguments, made = self._random.choice(calls)
        first = next(iter(made))
        like = [name for name, value in self.known.items() if value.shape == self.known[first].shape]
        gradient = next(name for name in given if name.startswith("grad"))
        found = {**arguments, gradient: self._random.choice(like), "indices": list(made)[-1]}
        return {name: value for name, value in found.items() if name in given}

    def _form(self, value: Tensor) -> Any:
        return (NUMBERS[value.dtype], tuple(value.shape), tuple(value.stride()))

    def _read(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.known[value]
        if isinstance(value, list) and value and isinstance(value[0], str):
            return [self.known[each] for each in value]
        return value

    def _argument(self, argument: Any, packet: str) -> Any:
        draw, kind, name = self._random, str(argument.type), argument.name
        if (argument.has_default_value() and draw.random() < 0.5) or name in ("device", "layout", "memory_format"):
            return argument.default_value
        match kind:
            case "Optional[Tensor]" if draw.random() < 0.2:
                return None
            case "Tensor" | "Optional[Tensor]":
                return self._tensor(name, packet)
            case "List[Tensor]":
                first = self._tensor(name, packet)
                return [first, *(first if draw.random() < 0.7 else self._tensor(name, packet) for _ in range(2))]
            case "int" if name == "groups":
                return draw.choice([1, 1, 1, 2, 3, 4])
            case "int" if "dtype" in name:
                return torch.float32
            case "int":
                return draw.randint(-2, 4)
            case "bool":
                return draw.random() < 0.3 if draw.random() < 0.95 else draw.choice([0, 1, 0.0])
            case "float":
                return draw.choice([0.0, 1e-5, 0.1, 1.0])
            case "number" | "Optional[number]":
                return draw.choice([-1, 0, 1, 2, 0.5, 3.0])
            case "List[bool]":
                return [draw.random() < 0.7 for _ in range(3)]
            case "List[int]" | "Optional[List[int]]" if name in ("size", "pad", "dims", "dim", "output_size"):
                shape = list(self.known[draw.choice(sorted(self.known))].shape) or [1]
                return shape if draw.random() < 0.5 else [draw.randint(-1, 4) for _ in range(draw.randint(0, 4))]
            case "List[int]" | "Optional[List[int]]" if name == "output_padding":
                return draw.choice([[0, 0], [0, 0], [0, 0], [1, 0]])
            case "List[int]" if name in ("stride", "padding", "dilation") and draw.random() < 0.2:
                return [draw.choice([1, 2, 64, 1000, 1 << 14, 1 << 20]) for _ in range(2)]
            case "List[int]" | "Optional[List[int]]" if name != "bias_sizes" or draw.random() < 0.3:
                return [draw.choice([0, 1, 1, 1, 2, 3]) for _ in range(2)]
        return argument.default_value if argument.has_default_value() else None

    def _tensor(self, name: str, packet: str) -> str:
        """A tensor that may well fit: vectors for vectors, gradients like results, indices of pooling."""
        wanted = list(self.known)
        if self._random.random() < 0.9:
            if name in VECTORS and "norm" in packet:
                wanted = [key for key in wanted if self.known[key].ndim == 1]
            elif name == "weight":
                wanted = ["k", "d"]
            elif name in ("indices", "index"):
                wanted = [key for key in wanted if self.known[key].dtype == torch.int64]
            elif name in ("input", "self") and any(word in packet for word in ("conv", "norm", "pool")):
                wanted = [key for key in wanted if self.known[key].ndim == 4]
            elif name.startswith("grad"):
                wanted = [key for key in wanted if self.known[key].ndim in (2, 4)]
        return self._random.choice(wanted or list(self.known))


def values(form: Tensor, generator: torch.Generator) -> Tensor:
    """Content for an input, with wild numbers among it."""
    if form.dtype == torch.bool:
        return torch.rand(form.shape, generator=generator) < 0.5
    if form.dtype == torch.int64:
        return torch.randint(-(2**62), 2**62, form.shape, generator=generator)
    found = torch.randn(form.shape, generator=generator)
    wild = torch.tensor(WILD)[torch.randint(len(WILD), form.shape, generator=generator)]
    return torch.where(torch.rand(form.shape, generator=generator) < 0.2, wild, found)


def run(raw: bytes, inputs: dict[str, Tensor], at_end: bool) -> int:
    """Run a vetted program call by call between guards; the number of calls."""
    graph = pt2_loading.load(raw).graph
    known: dict[Any, Any] = {}
    given = iter(inputs.values())
    calls = 0
    for node in graph.nodes:
        if node.op == "placeholder":
            known[node] = guarded(next(given), at_end)
        elif node.op == "call_function":
            args, keywords = torch.fx.node.map_arg((node.args, node.kwargs), known.__getitem__)
            try:
                found = node.target(*args, **keywords)
                calls += 1
                if isinstance(found, Tensor):
                    _into(node.target, args, keywords, found, at_end)
            except (RuntimeError, IndexError):
                return calls  # torch looks closer with content than without
            said = node.meta["val"]
            for result, form in zip(
                *((each if isinstance(each, tuple) else (each,)) for each in (found, said)), strict=True
            ):
                assert result is None or (result.dtype, result.shape) == (form.dtype, form.shape), (
                    f"{node.format_node()}: {result.dtype}{list(result.shape)}, {form}"
                )
            known[node] = guarded(found, at_end) if isinstance(found, Tensor) and found.numel() else found
            if isinstance(found, tuple):
                known[node] = tuple(
                    guarded(each, at_end) if each is not None and each.numel() else each for each in found
                )
    return calls


def _into(operator: Any, args: Any, keywords: Any, result: Tensor, at_end: bool) -> None:
    """Repeat a call so that it writes its result between guards, if torch has it in that form."""
    if not hasattr(operator, "_schema") or not result.numel():
        return
    names = [argument.name for argument in operator._schema.arguments if not argument.kwarg_only]
    packet = operator.overloadpacket
    for overload in map(packet.__getattr__, packet.overloads()):
        wanted = overload._schema.arguments
        written = [argument.name for argument in wanted if argument.is_out]
        if len(written) == 1 and [argument.name for argument in wanted if not argument.kwarg_only] == names:
            known = {key: value for key, value in keywords.items() if key in {argument.name for argument in wanted}}
            overload(*args, **known, **{written[0]: guarded(torch.empty_like(result).contiguous(), at_end)})
            return


def main(seconds: float, seed: int) -> None:
    """Run programs of this seed and of those after it for so long."""
    torch.set_num_threads(1)
    logging.getLogger("torch._subclasses.fake_tensor").setLevel(logging.CRITICAL)
    end, refused, calls = time.monotonic() + seconds, 0, 0
    ran: set[str] = set()
    while time.monotonic() < end:
        print(f"seed {seed}", flush=True)
        draw = Draw(seed)
        raw = b""
        for _ in range(CALLS):
            calls_before, known_before = list(draw.calls), dict(draw.known)
            draw.call()
            if draw.calls == calls_before:
                continue
            result = next(name for name, form in draw.calls[-1][2].items() if form is not None)
            try:
                raw = pt2_values.vetted(program(draw.inputs, draw.calls, [result]))
            except ProgramRefused:
                draw.calls, draw.known = calls_before, known_before
                refused += 1
        if raw:
            generator = torch.Generator().manual_seed(seed)
            given = {name: values(draw.known[name], generator) for name in draw.inputs}
            calls += sum(run(raw, given, at_end) for at_end in (True, False))
            ran.update(call[0] for call in draw.calls)
        seed += 1
    unseen = ", ".join(sorted(BY_OPERATOR.keys() - ran)) or "none"
    print(f"{calls} calls ran between guards, the vetting refused {refused}; operators that never ran: {unseen}")


if __name__ == "__main__":
    main(float(sys.argv[1]), int(sys.argv[2]))
