"""The columns of a study's table."""

from typing import Literal, get_args

Column = Literal[
    "global_accuracy",
    "global_precision",
    "global_recall",
    "personal_accuracy",
    "personal_precision",
    "personal_recall",
    "own_accuracy",
    "others_accuracy",
    "unseen_accuracy",
]
COLUMNS: tuple[Column, ...] = get_args(Column)

TITLES: dict[Column, str] = {
    "global_accuracy": "global accuracy",
    "global_precision": "global macro precision",
    "global_recall": "global macro recall",
    "personal_accuracy": "personal accuracy",
    "personal_precision": "personal macro precision",
    "personal_recall": "personal macro recall",
    "own_accuracy": "own people",
    "others_accuracy": "other clients' people",
    "unseen_accuracy": "people never met",
}
"""Titles for people."""

EXAMINED: dict[Column, str] = {"own_accuracy": "own", "others_accuracy": "others", "unseen_accuracy": "unseen"}
"""Columns of the final examination, with the names of its groups."""
