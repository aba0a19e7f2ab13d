"""Precision and recall from a confusion matrix, each class counting the same."""

import statistics
from collections.abc import Sequence


def macro(confusion: Sequence[Sequence[int]]) -> tuple[float, float]:
    """Precision and recall, each the mean over classes.

    A class that is never predicted has precision 0, as in scikit-learn; one without test photos is left out.

    Args:
        confusion: Photos by true class and, within it, predicted class; not all 0.
    """
    classes = [c for c, row in enumerate(confusion) if sum(row)]
    predicted = [sum(row[c] for row in confusion) for c in range(len(confusion))]
    precision = statistics.fmean(confusion[c][c] / predicted[c] if predicted[c] else 0.0 for c in classes)
    recall = statistics.fmean(confusion[c][c] / sum(confusion[c]) for c in classes)
    return precision, recall
