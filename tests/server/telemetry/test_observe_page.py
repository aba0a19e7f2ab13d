"""docs/observe.md, compared with the code."""

import re

from fedlens_server.telemetry.events import Event
from fedlens_server.telemetry.metrics import KINDS
from tests.test_repository import REPOSITORY

PAGE = (REPOSITORY / "docs" / "observe.md").read_text(encoding="utf-8")


def test_the_page_lists_every_event() -> None:
    section = PAGE.partition("### Events")[2].partition("\n## ")[0]

    assert re.findall(r"^\| `([a-z-]+)` \|", section, re.MULTILINE) == list(Event)


def test_the_page_lists_every_metric_with_its_labels_and_meaning() -> None:
    section = PAGE.partition("## Metrics")[2].partition("\n## ")[0]
    rows = [
        f"| `{name}{'_total' if kind.type == 'counter' else ''}` | {kind.type} | "
        f"{', '.join(f'`{label}`' for label in kind.labels) or '-'} | {kind.meaning} |"
        for name, kind in KINDS.items()
    ]

    assert [line for line in section.splitlines() if line.startswith("| `fedlens_")] == rows
