"""The columns of a study's tables."""

from typing import Literal, NamedTuple, get_args

Column = Literal[
    "global_accuracy",
    "global_precision",
    "global_recall",
    "personal_accuracy",
    "personal_precision",
    "personal_recall",
    "personal_fine_tuned_accuracy",
    "personal_last_accuracy",
    "pooled_accuracy",
    "pooled_fine_tuned_accuracy",
    "pooled_last_accuracy",
    "own_accuracy",
    "others_accuracy",
    "unseen_accuracy",
]
COLUMNS: tuple[Column, ...] = get_args(Column)

FORM = 2
"""The form of a run's results, from which the columns are computed; another form is refused."""

TITLES: dict[Column, str] = {
    "global_accuracy": "global accuracy",
    "global_precision": "global macro precision",
    "global_recall": "global macro recall",
    "personal_accuracy": "personal accuracy",
    "personal_precision": "personal macro precision",
    "personal_recall": "personal macro recall",
    "personal_fine_tuned_accuracy": "personal accuracy, after training",
    "personal_last_accuracy": "personal accuracy, last trained model",
    "pooled_accuracy": "pooled accuracy",
    "pooled_fine_tuned_accuracy": "pooled accuracy, after training",
    "pooled_last_accuracy": "pooled accuracy, last trained model",
    "own_accuracy": "own people",
    "others_accuracy": "other clients' people",
    "unseen_accuracy": "people never met",
}
"""Titles for people."""

EXAMINED: dict[Column, str] = {"own_accuracy": "own", "others_accuracy": "others", "unseen_accuracy": "unseen"}
"""Columns of the final examination, with the names of its groups."""


class Moment(NamedTuple):
    """A model that a client may be judged by at the end: its key in results, and its columns, mean and pooled."""

    key: str
    mean: Column
    pooled: Column


MOMENTS = (
    Moment("before", "personal_accuracy", "pooled_accuracy"),
    Moment("fine_tuned", "personal_fine_tuned_accuracy", "pooled_fine_tuned_accuracy"),
    Moment("last", "personal_last_accuracy", "pooled_last_accuracy"),
)
"""Before training, after one more local training from there, and as a client's own last training left it."""

# The three moments have a table of their own; the main one has the first of them.
MAIN: tuple[Column, ...] = tuple(
    column
    for column in COLUMNS
    if column not in {moment.pooled for moment in MOMENTS} | {moment.mean for moment in MOMENTS[1:]}
)
"""The columns of the main table."""
