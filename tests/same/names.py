"""The names that fields and files have in the record, whatever a commit calls them.

A later rename adds a line here; without one, `make same` would report the renamed field as gone and new.
"""

import re
from collections.abc import Iterator
from typing import Any

# What differs between two identical runs, or names bytes that carry field names.
_LEFT_OUT = re.compile(r"seconds|(^|_)(opened|ended)_at$|^fingerprint$|^id$|^bundles$|sha256$|^settings$|^task$")
# Old name -> the name in the record.
_RENAMED = {"photo_count": "num_examples", "photos": "num_examples", "after_thrown_away": "fine_tuned"}
# The study's tables as a commit calls them that has the option, new -> old.
_OLDER_STUDY = {"--regime": {"[partition]": "[regime]"}}


def numbers(values: Any, place: str = "") -> Iterator[tuple[str, float | int | bool]]:
    """Every number of JSON values with its place, such as `rounds/0/members/2/start/loss`."""
    if isinstance(values, dict):
        for key, value in values.items():
            if not _LEFT_OUT.search(key):
                yield from numbers(value, f"{place}/{_RENAMED.get(key, key)}".removeprefix("/"))
    elif isinstance(values, list):
        for index, value in enumerate(values):
            yield from numbers(value, f"{place}/{index}")
    elif isinstance(values, int | float):
        yield place, values


def study_for(text: str, fleet_help: str) -> str:
    """The study in the words of a commit, which the `--help` of its `fedlens fleet` tells."""
    for option, words in _OLDER_STUDY.items():
        for new, old in words.items() if option in fleet_help else ():
            text = text.replace(new, old)
    return text
