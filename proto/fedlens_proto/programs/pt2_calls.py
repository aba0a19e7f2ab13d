"""Calls of operators in `.pt2` programs, and the tensors that they take and give, as `pt2_rules` checks them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any, NamedTuple, NoReturn

from fedlens_proto.errors import ProgramRefused

FLOAT = "float32"
_ITEM_BYTES = {"uint8": 1, "int64": 8, "float32": 4, "bool": 1}


class Form(NamedTuple):
    """The form of a tensor: its element type by torch's name, and where its elements lie in its memory."""

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int

    @property
    def bytes(self) -> int:
        """Its size, as if it shared no memory."""
        return prod(self.shape) * _ITEM_BYTES[self.dtype]

    @property
    def reach(self) -> int:
        """The bytes from the start of its memory to the end of its last element."""
        if 0 in self.shape:
            return 0
        steps = zip(self.shape, self.strides, strict=True)
        last = self.offset + sum((size - 1) * stride for size, stride in steps)
        return (last + 1) * _ITEM_BYTES[self.dtype]

    @property
    def stepped(self) -> "Form":
        """The same with a stride of 0 in dimensions of one element, in which nothing depends on it."""
        steps = zip(self.shape, self.strides, strict=True)
        return self._replace(strides=tuple(stride if size != 1 else 0 for size, stride in steps))

    def __str__(self) -> str:
        """Type, shape and strides, for people."""
        where = f" from {self.offset}" if self.offset else ""
        return f"{self.dtype}{list(self.shape)} in strides {list(self.strides)}{where}"


@dataclass(frozen=True, eq=False)
class Memory:
    """Memory that tensors may share."""

    bytes: int


@dataclass(frozen=True, eq=False)
class Value:
    """A tensor of a graph.

    Attributes:
        form: Its type, sizes and strides.
        memory: The memory that it is in.
        maker: The call that it is a result of; None: an input of the program.
        place: Its place among the results of that call.
    """

    form: Form
    memory: Memory
    maker: "Call | None" = None
    place: int = 0

    @property
    def shape(self) -> tuple[int, ...]:
        """Its sizes."""
        return self.form.shape

    @property
    def dtype(self) -> str:
        """Its element type, by torch's name."""
        return self.form.dtype

    def __str__(self) -> str:
        """Type and shape, for people."""
        return f"{self.dtype}{list(self.shape)}"


@dataclass(frozen=True, eq=False)
class Call:
    """One call of an operator, with checks of its arguments that refuse the program.

    Attributes:
        operator: Such as `add.Tensor`.
        node: Name of its first result.
        arguments: By name, those that are left out too; tensors are `Value`s.
    """

    operator: str
    node: str
    arguments: Mapping[str, Any]

    def refuse(self, what: str, found: object, allowed: object) -> NoReturn:
        """Refuse the program for an argument, or for something else about the call."""
        raise ProgramRefused(
            f"program refused: aten.{self.operator} of {self.node!r}: {what} is {found}, allowed is {allowed}"
        )

    @cached_property
    def tensors(self) -> list[Value]:
        """Its arguments that are tensors."""
        given = self.arguments.values()
        listed = [each for value in given for each in (value if isinstance(value, list) else [value])]
        return [value for value in listed if isinstance(value, Value)]

    def tensor(self, name: str) -> Value:
        """An argument that must be a tensor."""
        found = self.arguments[name]
        if not isinstance(found, Value):
            self.refuse(name, found, "a tensor")
        return found

    def shape(self, name: str, dimensions: int) -> tuple[int, ...]:
        """The shape of an argument that must be a float32 tensor of so many dimensions."""
        self.expect(name, [None] * dimensions)
        return self.tensor(name).shape

    def expect(self, name: str, shape: Sequence[int | None], *, optional: bool = False) -> None:
        """Check that an argument is a float32 tensor of this shape, in which None stands for any size."""
        found = self.arguments[name]
        if found is None and optional:
            return
        if (
            not isinstance(found, Value)
            or found.dtype != FLOAT
            or len(found.shape) != len(shape)
            or any(wanted not in (None, size) for wanted, size in zip(shape, found.shape, strict=True))
        ):
            sizes = ", ".join("any" if size is None else str(size) for size in shape)
            self.refuse(name, found or "nothing", f"{FLOAT}[{sizes}]")

    def numbers(
        self, name: str, least: int, most: int | None = None, counts: tuple[int, ...] = (1, 2)
    ) -> tuple[int, ...]:
        """The whole numbers of an argument, each from `least` to `most` or without end, and so many of them."""
        found = self.arguments[name]
        listed = tuple(found) if isinstance(found, list) else (found,)
        if len(listed) not in counts or any(
            type(number) is not int or number < least or (most is not None and number > most) for number in listed
        ):
            many = " or ".join(map(str, counts))
            limit = "" if most is None else f" and at most {most}"
            self.refuse(name, found, f"{many} whole numbers of at least {least}{limit}")
        return listed

    def same(self, other: "Call", *names: str) -> None:
        """Check that arguments are those of another call."""
        for name in names:
            found, wanted = self.arguments[name], other.arguments[name]
            if found is not wanted if isinstance(wanted, Value) else found != wanted:
                self.refuse(name, found, f"that of {other.node!r}, {wanted}")
