"""The table of a study: on the terminal, in Markdown, and as rows for the report."""

from collections.abc import Mapping, Sequence

from rich.table import Table
from rich.text import Text

from fedlens.compare.columns import COLUMNS, TITLES, Column
from fedlens.compare.study import Study
from fedlens.compare.summary import MethodSummary, Value
from fedlens.demo.report import readable_bytes

PAPERS = "the paper's number"
_WIDE = 150
_LEFT_OUT = (*(title for column, title in TITLES.items() if "accuracy" not in column), "sent to clients")


def header(study: Study, summaries: Sequence[MethodSummary]) -> list[str]:
    """The names of the columns; those of the paper's numbers are marked by a star."""
    shown = measured(summaries)
    titles = [f"{TITLES[column]}{' *' if column in study.paper_columns else ''}" for column in shown]
    published = [f"published {TITLES[column]}" for column in _published(study)]
    return ["method", *titles, *published, "sent by clients", "sent to clients", "time of a run"]


def rows(study: Study, summaries: Sequence[MethodSummary]) -> list[list[str]]:
    """A line for each method, under `header`."""
    shown = measured(summaries)
    return [
        [
            summary.label,
            *(_percent(summary.columns.get(column)) for column in shown),
            *(_given(study.methods[summary.label].published, column) for column in _published(study)),
            readable_bytes(summary.bytes_up),
            readable_bytes(summary.bytes_down),
            f"{summary.seconds:.0f} s",
        ]
        for summary in summaries
    ]


def note(study: Study, summaries: Sequence[MethodSummary]) -> str:
    """What the figures are, in a sentence or two."""
    seeds = {value.seeds for summary in summaries for value in summary.columns.values()}
    over = f"mean and deviation over {max(seeds)} seeds" if seeds and max(seeds) > 1 else "one seed"
    stars = f" * {PAPERS}." if study.paper_columns else ""
    return (
        f"Percent of test photos, {over}. Global: the shared model on all test photos. Personal: each client's own "
        f"model on its own test photos, mean over clients.{stars}"
    )


def measured(summaries: Sequence[MethodSummary]) -> list[Column]:
    """The columns that some method has."""
    return [column for column in COLUMNS if any(column in summary.columns for summary in summaries)]


def rich_table(study: Study, summaries: Sequence[MethodSummary], width: int) -> Table:
    """For a terminal of this width: on a narrow one precision, recall and traffic down are left to the report."""
    names = header(study, summaries)
    shown = [i for i, name in enumerate(names) if width >= _WIDE or not name.startswith(_LEFT_OUT)]
    table = Table(title=study.title or study.name, caption=note(study, summaries), caption_justify="left")
    for i in shown:
        table.add_column(Text(names[i]), justify="right" if i else "left", no_wrap=i == 0)
    for row in rows(study, summaries):
        table.add_row(*(Text(row[i]) for i in shown))
    return table


def markdown(study: Study, summaries: Sequence[MethodSummary]) -> str:
    """For a page."""
    names = header(study, summaries)
    lines = [names, ["---", *["---:"] * (len(names) - 1)], *rows(study, summaries)]
    body = "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
    faults = [f"- {summary.label}, {fault}" for summary in summaries for fault in summary.faults]
    trouble = "\n\nWhat went wrong on the way:\n\n" + "\n".join(faults) if faults else ""
    return f"# {study.title or study.name}\n\n{body}\n\n{note(study, summaries)}{trouble}\n"


def _percent(value: Value | None) -> str:
    if value is None:
        return "-"
    deviation = "" if value.deviation is None else f" ± {100 * value.deviation:.1f}"
    return f"{100 * value.mean:.1f}{deviation}"


def _given(published: Mapping[Column, float], column: Column) -> str:
    return f"{published[column]:g}" if column in published else "-"


def _published(study: Study) -> list[Column]:
    return [column for column in COLUMNS if any(column in method.published for method in study.methods.values())]
