"""The rows as people and programs read them."""

import json
import platform
from collections.abc import Sequence
from importlib.metadata import version

from rich.table import Table

from bench.row import Row
from fedlens.reports.made import processor

COLUMNS = ("measure", "floor", "measured", "ratio or value", "target", "met?")
_TOOLS = ("numpy", "torch", "aiohttp", "SQLAlchemy")


def cells(row: Row) -> tuple[str, str, str, str, str, str]:
    """One line, a text for each column."""
    return (
        row.measure,
        f"{row.floor.text(row.digits)} {row.unit}: {row.floor_is}",
        f"{row.measured.text(row.digits)} {row.unit}",
        row.judged_text,
        row.target_text,
        "yes" if row.is_met else "MISSED",
    )


def rich_table(rows: Sequence[Row]) -> Table:
    """For a terminal."""
    table = Table(title=f"FedLens benchmarks on {machine()}", show_lines=True)
    for column in COLUMNS:
        table.add_column(column)
    for row in rows:
        table.add_row(*cells(row), style=None if row.is_met else "bold red")
    return table


def markdown(rows: Sequence[Row], busy: str) -> str:
    """For `docs/benchmarks.md`: the table, a note for each row that has one, and how busy the machine was."""
    lines = [f"| {' | '.join(COLUMNS)} |", f"|{'---|' * len(COLUMNS)}"]
    lines += [f"| {' | '.join(cells(row))} |" for row in rows]
    notes = [f"- {row.measure}: {row.note}." for row in rows if row.note]
    return "\n".join([*lines, *([""] if notes else []), *notes, "", f"Measured on {machine()}; {busy}."])


def as_json(rows: Sequence[Row]) -> str:
    """For programs: every value."""
    return json.dumps({"machine": machine(), "rows": [_values(row) for row in rows]}, indent=2)


def machine() -> str:
    """Processor, cores and versions."""
    cores, cpu = processor()
    tools = ", ".join(f"{name} {version(name)}" for name in _TOOLS)
    return f"{cores} cores of {cpu}, Python {platform.python_version()}, {tools}"


def _values(row: Row) -> dict[str, object]:
    return {
        "measure": row.measure,
        "unit": row.unit,
        "floor": row.floor.values,
        "floor_is": row.floor_is,
        "measured": row.measured.values,
        "judged": row.judged,
        "target": row.target,
        "met": row.is_met,
        "note": row.note,
    }
