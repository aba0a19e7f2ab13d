"""A drawn operator in a later tree, by its function's name, its statement and its operands; in doubt it is gone."""

import re
from collections.abc import Mapping
from difflib import SequenceMatcher
from functools import cache
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import Any

from tests.mutants.operators import Function, Operator, functions

ROOTS = ("server", "edge_client", "proto", "fedlens")
MIN_WORDS = 0.5  # names that two functions share, by Dice
MIN_TEXT = 0.7  # tokens that two statements share, and two operators with their operands
Record = Mapping[str, Any]
_text = attrgetter("statement", "expression")


def record(function: Function, index: int) -> dict[str, Any]:
    """The record by which an operator is found again."""
    found = function.operators[index]
    same = [i for i, other in enumerate(function.operators) if other.change == found.change]
    twins = [i for i in same if _text(function.operators[i]) == _text(found)]
    return {
        **{"path": function.path, "function": function.name, "change": found.change},
        **{"statement": found.statement, "expression": found.expression},
        **{"ordinal": same.index(index), "count": len(same)},
        "twin": [twins.index(index), len(twins)],  # among those of the same text
        "others": sorted({function.operators[i].expression for i in same} - {found.expression}),
        "words": " ".join(sorted(function.words)),
    }


class Tree:
    """Every function of a tree's product code.

    Args:
        root: The tree.
        renamed: What has another name in it: `words` in any text; `functions`, whose keys are qualified names, these
            after `path:`, or a mutant's id, where a function was split.
    """

    def __init__(self, root: Path, renamed: Mapping[str, Mapping[str, str]]) -> None:
        self._words, self._functions = renamed.get("words", {}), renamed.get("functions", {})
        paths = sorted(path for part in ROOTS for path in (root / part).rglob("*.py") if "_pb2" not in path.name)
        self.sources = {path.relative_to(root).as_posix(): path.read_text(encoding="utf-8") for path in paths}
        self.functions = [found for path, source in self.sources.items() for found in functions(path, source)]

    def find(self, record: Record) -> tuple[Function, Operator] | str:
        """The function and its operator; of one that is gone the function that is most like the one that had it."""
        keys = (record.get("id", ""), f"{record['path']}:{record['function']}", record["function"])
        listed = next((self._functions[key] for key in keys if key in self._functions), None)
        name = listed or self._renamed(record["function"])
        words = frozenset(self._renamed(record["words"]).split())
        likeness = {f: 2 * len(words & f.words) / (len(words) + len(f.words) or 1) for f in self.functions}
        candidates = []
        for function, like in likeness.items():
            namesake = like >= MIN_WORDS and function.name.rpartition(".")[2] == name.rpartition(".")[2]
            if function.name == name if listed else namesake:
                score, found = self._most_alike(record, function)
                rank = (function.name == name, score + like, function.path == record["path"])
                candidates += [(rank, function, found)] if found else []
        nearest = max(likeness, key=likeness.__getitem__)
        _, function, found = max(candidates, key=itemgetter(0), default=(None, nearest, []))
        place, count = record["twin"]
        if len(found) == count:
            return function, found[place]
        return f"most alike is {nearest.path}:{nearest.name} with {likeness[nearest]:.2f} of its names"

    def _most_alike(self, record: Record, function: Function) -> tuple[float, list[Operator]]:
        """The operators, all of one text, most like a drawn one, if none of its neighbours is more like them."""
        statement, expression = self._renamed(record["statement"]), self._renamed(record["expression"])
        others = [self._renamed(other) for other in record["others"]]
        same = [operator for operator in function.operators if operator.change == record["change"]]
        scores = [(0.0, ("", ""))]
        for found in same:
            parts = _alike(expression, found.expression), _alike(statement, found.statement)
            neighbour = any(_alike(other, found.expression) > parts[0] for other in others)
            if min(parts) >= MIN_TEXT and not neighbour:
                scores.append((sum(parts), _text(found)))
        score, text = max(scores, key=itemgetter(0))
        return score, [operator for operator in same if _text(operator) == text]

    def _renamed(self, text: str) -> str:
        return re.sub(r"\w+", lambda word: self._words.get(word[0], word[0]), text)


@cache
def _alike(a: str, b: str) -> float:
    first, second = (re.findall(r"\w+|[^\w\s]", text) for text in (a, b))
    return SequenceMatcher(None, first, second, autojunk=False).ratio()
