"""Confusion matrices as HTML tables of counts, shaded by their part of the row."""

from collections.abc import Sequence
from html import escape

import numpy as np
from numpy.typing import NDArray

from fedlens.reports.page import section

MOST_CLASSES = 30
# In percent; a darker shade would hide the count in a cell.
_MOST_SHADE = 55


def confusion_section(
    counts: NDArray[np.int64],
    class_names: Sequence[str],
    *,
    title: str = "Confusion matrix",
    model: str = "the shared model",
) -> str:
    """A card with the matrix; of more than 30 classes it shows those that are confused most.

    Args:
        counts: Test photos by true class, the row, and predicted class, the column: int64 [C, C].
        class_names: C names.
        title: Title of the card.
        model: Whose predictions they are, in words.
    """
    wrong = counts.sum(0) + counts.sum(1) - 2 * counts.diagonal()
    shown = np.sort(np.argsort(-wrong, kind="stable")[:MOST_CLASSES])
    names = [escape(class_names[int(label)]) for label in shown]
    head = "".join(f'<th scope="col"><span>{name}</span></th>' for name in names)
    body = "".join(
        f'<tr><th scope="row">{name}</th>{"".join(_cell(counts[label], predicted) for predicted in shown)}</tr>'
        for name, label in zip(names, shown, strict=True)
    )
    left_out = f" The {len(shown)} classes that are confused most." if len(shown) < len(counts) else ""
    note = (
        f"Test photos by true class (rows) and the prediction of {model} (columns): everything beside the diagonal is "
        f"wrong.{left_out}"
    )
    table = f'<table class="confusion"><thead><tr><td></td>{head}</tr></thead><tbody>{body}</tbody></table>'
    return section(title, note, f'<div class="wide">{table}</div>')


def _cell(row: NDArray[np.int64], predicted: int) -> str:
    count = row[predicted]
    if not count:
        return "<td></td>"
    return f'<td style="--part: {_MOST_SHADE * count / row.sum():.0f}%">{count}</td>'
