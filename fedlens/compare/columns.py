"""The columns of a study's table."""

from typing import Literal, get_args

Column = Literal[
    "global_accuracy",
    "global_precision",
    "global_recall",
    "personal_accuracy",
    "personal_precision",
    "personal_recall",
]
COLUMNS: tuple[Column, ...] = get_args(Column)

TITLES: dict[Column, str] = {
    "global_accuracy": "global accuracy",
    "global_precision": "global macro precision",
    "global_recall": "global macro recall",
    "personal_accuracy": "personal accuracy",
    "personal_precision": "personal macro precision",
    "personal_recall": "personal macro recall",
}
"""What people read."""
