"""Single operators inside functions, and the change that makes each a mutant."""

import ast
import copy
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

_PAIRS = (
    *((ast.Lt, "<", ast.LtE, "<="), (ast.Gt, ">", ast.GtE, ">="), (ast.Eq, "==", ast.NotEq, "!=")),
    *((ast.Is, "is", ast.IsNot, "is not"), (ast.In, "in", ast.NotIn, "not in"), (ast.And, "and", ast.Or, "or")),
    *((ast.Add, "+", ast.Sub, "-"), (ast.Mult, "*", ast.Div, "/"), (ast.FloorDiv, "//", ast.Mod, "%")),
)
_SWAPS: dict[Any, tuple[str, Any]] = {}
for _a, _x, _b, _y in _PAIRS:
    _SWAPS |= {_a: (f"{_x} to {_y}", _b), _b: (f"{_y} to {_x}", _a)}
_MESSAGES = (ast.JoinedStr, ast.Raise, ast.Assert)
_MESSAGE_CALL = re.compile(r"(_?log|logger|logging|warnings)\.|\w*(Error|Warning)\(")
# A sum of these is no arithmetic: their difference raises in any test.
_SEQUENCES = (ast.JoinedStr, ast.List, ast.Tuple, ast.Set, ast.Dict, ast.ListComp)


@dataclass(frozen=True)
class Operator:
    """One operator of a function, and the text that changes it."""

    change: str  # such as "< to <="
    statement: str  # of a compound one its first line
    expression: str  # the operator with its operands
    lines: tuple[int, int]  # first and last of what the statement computes itself
    place: ast.expr | ast.stmt
    replacement: str

    def mutant(self, source: str) -> str:
        """The module with this operator changed."""
        lines, node = source.encode().splitlines(keepends=True), self.place
        assert node.end_lineno and node.end_col_offset is not None  # parsed from text
        before = [*lines[: node.lineno - 1], lines[node.lineno - 1][: node.col_offset]]
        after = [lines[node.end_lineno - 1][node.end_col_offset :], *lines[node.end_lineno :]]
        return b"".join([*before, self.replacement.encode(), *after]).decode()


@dataclass(frozen=True)
class Function:
    """A function of a module."""

    path: str
    name: str  # qualified, without `<locals>`
    words: frozenset[str]  # every name and every text that could be one
    operators: tuple[Operator, ...]  # but for those of functions in it


def functions(path: str, source: str) -> list[Function]:
    """Every function of a module."""
    return list(_functions(path, ast.parse(source), ""))


def _functions(path: str, node: ast.AST, prefix: str) -> Iterator[Function]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            found = [getattr(part, key, "") for part in ast.walk(child) for key in ("id", "attr", "arg", "value")]
            words = frozenset(word for word in found if isinstance(word, str) and word.isidentifier())
            operators = (operator for statement in _statements(child) for operator in _operators(statement))
            yield Function(path, prefix + child.name, words, tuple(operators))
        inner = ""
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            inner = f"{child.name}."
        yield from _functions(path, child, prefix + inner)


def _statements(node: ast.AST) -> Iterator[ast.stmt]:
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, (ast.expr, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            if isinstance(child, ast.stmt):
                yield child
            yield from _statements(child)


def _parts(node: ast.AST) -> Iterator[tuple[ast.expr, ast.AST]]:
    """The expressions in a statement, each with the node that holds it, but for those of messages and annotations."""
    for child in ast.iter_child_nodes(node):
        message = isinstance(child, ast.Call) and _MESSAGE_CALL.match(ast.unparse(child))
        nested = isinstance(child, (ast.stmt, ast.ExceptHandler, ast.match_case, *_MESSAGES))
        if not message and not nested and child is not getattr(node, "annotation", None):
            if isinstance(child, ast.expr):
                yield child, node
            yield from _parts(child)


def _operators(statement: ast.stmt) -> Iterator[Operator]:
    if isinstance(statement, _MESSAGES):
        return
    header = copy.copy(statement)
    for part in {"body", "orelse", "cases", "handlers", "finalbody"} & set(header._fields):
        setattr(header, part, [ast.Pass()] if part == "body" else [])
    text = ast.unparse(header).partition("\n")[0]
    parts = list(_parts(statement))
    lines = statement.lineno, max([statement.lineno, *(part.end_lineno or 0 for part, _ in parts)])
    own: tuple[ast.expr | ast.stmt, ast.AST] = (statement, statement)
    for node, parent in (own, *parts):
        for change, place, changed in _changes(node):
            seen = parent if isinstance(node, ast.Constant) and isinstance(parent, ast.expr) else node
            expression = ast.unparse(seen) if isinstance(seen, ast.expr) else text
            simple = isinstance(changed, (ast.stmt, ast.Constant, ast.Name))
            replacement = ast.unparse(changed) if simple else f"({ast.unparse(changed)})"
            yield Operator(change, text, expression, lines, place, replacement)


def _changes(node: ast.expr | ast.stmt) -> Iterator[tuple[str, ast.expr | ast.stmt, ast.expr | ast.stmt]]:
    """Each change of a node: its name, what is replaced, and by what."""
    changed: Any = copy.deepcopy(node)
    match node:
        case ast.Compare():
            for index, operator in enumerate(node.ops):
                change, other = _SWAPS[type(operator)]
                changed.ops = [*node.ops[:index], other(), *node.ops[index + 1 :]]
                yield change, node, changed
        case ast.BoolOp() | ast.BinOp() | ast.AugAssign() if type(node.op) in _SWAPS:
            for side in (node.left, node.right) if isinstance(node, ast.BinOp) else ():
                if isinstance(side, _SEQUENCES) or isinstance(getattr(side, "value", None), str | bytes):
                    return
            change, other = _SWAPS[type(node.op)]
            changed.op = other()
            yield change, node, changed
        case ast.UnaryOp(op=ast.Not()):
            yield "not x to x", node, node.operand
        case ast.Constant(value=int(value)) if not isinstance(value, bool):
            yield f"{value} to {value + 1}", node, ast.Constant(value + 1)
        case ast.Return(value=ast.Constant(value=bool(value))):
            yield f"return {value} to {not value}", node, ast.Return(ast.Constant(not value))
        case ast.Call(func=ast.Name(id="min" | "max" as name)):
            swapped = {"min": "max", "max": "min"}[name]
            yield f"{name} to {swapped}", node.func, ast.Name(swapped)
