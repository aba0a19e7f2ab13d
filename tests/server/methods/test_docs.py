"""The page about methods says what there is."""

import json
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from fedlens_server.methods import METHODS
from fedlens_server.planning.task_settings import TaskSettings

DOCS = Path(__file__).parents[3] / "docs"
METHODS_PAGE = (DOCS / "methods.md").read_text(encoding="utf-8")


def rows(page: str) -> list[list[str]]:
    """Cells of all table rows."""
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in page.splitlines() if line.startswith("| `")]


def test_every_method_is_on_the_page_and_no_other() -> None:
    section = METHODS_PAGE.partition("## Options")[0]
    assert sorted(row[0].strip("`") for row in rows(section)) == sorted(METHODS)


def test_every_option_is_on_the_page_with_its_default_and_what_is_allowed() -> None:
    declared = [
        [f"`{method}`", f"`{name}`", _default(option.default), option.allowed]
        for method in METHODS
        for name, option in METHODS[method].options.items()
    ]

    section = METHODS_PAGE.partition("## Options")[2].partition("## Task settings")[0]
    assert sorted(row[:4] for row in rows(section)) == sorted(declared)


def test_every_task_setting_is_on_the_page_with_its_default_and_what_is_allowed() -> None:
    declared = [
        [f"`{name}`", "required" if field.is_required() else _default(field.default), field.description]
        for name, field in TaskSettings.__pydantic_fields__.items()
    ]

    section = METHODS_PAGE.partition("## Task settings")[2]
    assert [row[:3] for row in rows(section)] == declared


def _default(value: Any) -> str:
    value = value.model_dump() if isinstance(value, BaseModel) else value
    return "unset" if value is None else f"`{json.dumps(value)}`"
