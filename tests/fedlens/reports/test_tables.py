"""Tables in terminals that are narrower than what they show."""

from types import SimpleNamespace

import pytest
from rich.console import Console

from fedlens.reports import tables, task_report
from tests.fedlens.reports.test_task_report import sample

ID = "2f" * 32
CLIENT = (ID, "trainer", "phones", "2023-11-14 22:13Z", "2023-11-14 22:14Z", "active")
COLUMNS = ("id", "role", "token", "enrolled", "last seen", "state")


@pytest.fixture
def columns(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """The columns of the terminal."""
    wide = int(request.param)
    monkeypatch.setattr(tables, "Console", lambda width: Console(width=width or wide, force_terminal=False))
    monkeypatch.setattr(tables, "sys", SimpleNamespace(stdout=SimpleNamespace(isatty=lambda: True)))
    return wide


def test_one_is_no_plural() -> None:
    assert [tables.counted(count, "blob") for count in (0, 1, 2000)] == ["0 blobs", "1 blob", "2,000 blobs"]


@pytest.mark.parametrize("columns", [80, 100, 200], indirect=True)
def test_rounds_take_one_line_each(columns: int, capsys: pytest.CaptureFixture[str]) -> None:
    values = task_report.round_values(sample()) | {"bytes_received": 123_456_789, "bytes_sent": 999_900_000}
    rows = [task_report.round_row(values | {"round": number}) for number in (998, 999)]

    tables.print_table(task_report.ROUND_COLUMNS, rows, dropped=task_report.DROPPED_COLUMNS)

    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 + 1 + 2 + 1  # the header's, one below it, a line for each round, the lower edge
    assert max(map(len, lines)) <= columns
    assert all(f" {word} " in lines[1] for word in ("state", "reported", "left out", "before", "after", "global"))
    assert (" late " in lines[1], " bytes in " in lines[1], "±" in lines[1]) == (True, columns > 80, columns > 100)


@pytest.mark.parametrize("columns", [80, 100], indirect=True)
def test_a_first_cell_that_must_not_be_cut_stands_on_a_line_of_its_own(
    columns: int, capsys: pytest.CaptureFixture[str]
) -> None:
    tables.print_table(COLUMNS, [CLIENT], "there may be more", uncut=True)

    first, *others = capsys.readouterr().out.splitlines()
    assert first == ID
    told = "role trainer, token phones, enrolled 2023-11-14 22:13Z, last seen 2023-11-14 22:14Z, state active"
    assert " ".join(" ".join(others).split()) == f"{told} there may be more"


@pytest.mark.parametrize("columns", [200], indirect=True)
def test_it_stands_in_the_table_where_there_is_room(columns: int, capsys: pytest.CaptureFixture[str]) -> None:
    tables.print_table(COLUMNS, [CLIENT], uncut=True)

    assert f"│ {ID} │ trainer" in capsys.readouterr().out


def test_what_is_no_terminal_gets_the_table_uncut(capsys: pytest.CaptureFixture[str]) -> None:
    tables.print_table(COLUMNS, [(*CLIENT[:-1], "banned since 2023-11-14 22:15Z: " + 60 * "it floods ")], uncut=True)

    assert f"│ {ID} │ trainer" in capsys.readouterr().out
