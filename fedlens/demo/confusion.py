"""Which classes the shared model takes for which: a table of counts, shaded by their part of the row."""

from html import escape

import numpy as np
from numpy.typing import NDArray

from fedlens.demo.comparison import Comparison
from fedlens.demo.report import section

MOST_CLASSES = 30
# More would hide the count that stands in a cell.
_MOST_SHADE = 55


def counts(comparison: Comparison) -> NDArray[np.int64]:
    """Test photos by true class, the row, and by the shared model's answer, the column: int64 [C, C]."""
    found = np.zeros((len(comparison.class_names),) * 2, np.int64)
    np.add.at(found, (comparison.labels, comparison.together.labels), 1)
    return found


def confusion(comparison: Comparison) -> str:
    """The matrix as a part of the page; of many classes those that are mixed up most."""
    found = counts(comparison)
    wrong = found.sum(0) + found.sum(1) - 2 * found.diagonal()
    shown = np.sort(np.argsort(-wrong, kind="stable")[:MOST_CLASSES])
    names = [escape(comparison.class_names[label]) for label in shown]
    head = "".join(f'<th scope="col"><span>{name}</span></th>' for name in names)
    body = "".join(
        f'<tr><th scope="row">{name}</th>{"".join(_cell(found[label], answer) for answer in shown)}</tr>'
        for name, label in zip(names, shown, strict=True)
    )
    left_out = f" The {len(shown)} classes that are mixed up most." if len(shown) < len(found) else ""
    note = (
        "A row for each true class, a column for each answer of the shared model, in test photos: what stands beside "
        f"the diagonal is wrong.{left_out}"
    )
    table = f'<table class="confusion"><thead><tr><td></td>{head}</tr></thead><tbody>{body}</tbody></table>'
    return section("Taken for", note, f'<div class="wide">{table}</div>')


def _cell(row: NDArray[np.int64], answer: int) -> str:
    count = row[answer]
    if not count:
        return "<td></td>"
    return f'<td style="--part: {_MOST_SHADE * count / row.sum():.0f}%">{count}</td>'
