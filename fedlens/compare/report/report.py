"""The report of a study: one HTML file that needs no network."""

import platform
from collections.abc import Mapping, Sequence
from html import escape
from importlib import resources
from importlib.metadata import version
from pathlib import Path
from string import Template

import plotly.offline  # type: ignore[import-untyped]  # plotly comes without types

from fedlens.compare.columns import TITLES, Column
from fedlens.compare.plan import StudyPlan
from fedlens.compare.report import figures, tables
from fedlens.compare.report.summary import MethodSummary
from fedlens.compare.study import MethodSection, Study
from fedlens.demo.report import plot_html, table_rows

CURVES: tuple[Column, ...] = ("global_accuracy", "personal_accuracy")
_NOTES: Mapping[Column, str] = {
    "global_accuracy": "The shared model on test photos that no client trains on. "
    "The band is the deviation over seeds.",
    "personal_accuracy": "What each client of a round would use before it trains, on its own test photos, all of the "
    "round's clients together. The table has the mean over all clients at the end.",
}
PACKAGES = ("fedlens", "torch", "numpy", "plotly")


def write_report(path: Path, study: Study, planned: StudyPlan, summaries: Sequence[MethodSummary]) -> None:
    """Write the report; the file is there in whole or not at all."""
    page = Template(resources.files("fedlens.compare.report").joinpath("report.html").read_text(encoding="utf-8"))
    style = resources.files("fedlens.demo").joinpath("report.html").read_text(encoding="utf-8")
    text = page.substitute(
        style=style[style.index("<style>") : style.index("</style>")] + _STYLE + "</style>",
        title=escape(f"FedLens: {study.title or study.name}"),
        lead=escape(study.paper or "Methods compared on the same clients, photos and seeds."),
        plotly=plotly.offline.get_plotlyjs(),
        table=_table([tables.header(study, summaries), *tables.rows(study, summaries)]),
        table_note=escape(tables.note(study, summaries)),
        more_tables=_more_tables(study, summaries),
        plots="".join(_plots(summaries, column) for column in CURVES),
        incidents=_incidents(summaries),
        settings=table_rows(_setup(study, planned)),
        versions=table_rows({name: version(name) for name in PACKAGES} | {"Python": platform.python_version()}),
    )
    unfinished = path.with_suffix(".part")
    unfinished.write_text(text, encoding="utf-8")
    unfinished.replace(path)


_STYLE = """
.lead { margin-bottom: 1.25rem; }
.figures { overflow-x: auto; }
.figures th, .figures td { width: auto; text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
.figures thead th { white-space: normal; vertical-align: bottom; border-top: 0; }
.figures th:first-child { text-align: left; color: var(--ink); }
"""


def _table(lines: Sequence[Sequence[str]]) -> str:
    """Of a header and rows, each with a name first."""
    head = "".join(f"<th>{escape(name)}</th>" for name in lines[0])
    body = "".join(
        f"<tr><th>{escape(first)}</th>{''.join(f'<td>{escape(cell)}</td>' for cell in rest)}</tr>"
        for first, *rest in lines[1:]
    )
    return f'<div class="figures"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _more_tables(study: Study, summaries: Sequence[MethodSummary]) -> str:
    return "".join(
        f'<section><h2>{escape(title)}</h2><p class="note">{escape(explanation)}</p>{_table(lines)}</section>'
        for title, explanation, lines in tables.more_tables(study, summaries)
    )


def _plots(summaries: Sequence[MethodSummary], column: Column) -> str:
    if not any(summary.curves[column] for summary in summaries):
        return ""
    by_rounds = plot_html(figures.against_rounds(summaries, column), f"{column}-rounds")
    by_bytes = plot_html(figures.against_bytes(summaries, column), f"{column}-bytes")
    title = TITLES[column].capitalize()
    return (
        f'<section><h2>{title} by round</h2><p class="note">{escape(_NOTES[column])}</p>'
        f'<div class="plot">{by_rounds}</div></section>'
        f'<section><h2>{title} by bytes sent</h2><p class="note">What a byte buys: updates of all clients together, '
        f'without what they download.</p><div class="plot">{by_bytes}</div></section>'
    )


def _incidents(summaries: Sequence[MethodSummary]) -> str:
    items = "".join(f"<li>{escape(f'{s.label}, {fault}')}</li>" for s in summaries for fault in s.faults)
    return f"<section><h2>What went wrong on the way</h2><ul>{items}</ul></section>" if items else ""


def _setup(study: Study, planned: StudyPlan) -> dict[str, str]:
    fleet = planned.runs[0].fleet
    train, test = (sum(map(len, side)) for side in (fleet.pool.train, fleet.pool.test))
    shared = {key.replace("_", " "): _shown(value) for key, value in sorted(study.settings.items())}
    own = {
        f"of {label}": ", ".join([method.method, method.objective, *_own(method)])
        for label, method in study.methods.items()
    }
    return {
        "Photos": f"{train:,} to train on, {test:,} for tests",
        "Classes": ", ".join(fleet.pool.class_names),
        "Clients": str(study.clients),
        "Partition": fleet.partition.summary,
        "Models": ", ".join(study.model.names),
        "Local training": f"batches of {study.model.batch}, {study.model.optimiser.upper()}",
        "Seeds": ", ".join(map(str, study.seeds)),
        **shared,
        **own,
    }


def _own(method: MethodSection) -> list[str]:
    others = {"head": method.head, "clients": method.clients}
    found = method.settings | {key: value for key, value in others.items() if value is not None}
    return [f"{key.replace('_', ' ')} {_shown(value)}" for key, value in sorted(found.items())]


def _shown(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {found}" for key, found in sorted(value.items()))
    return str(value).lower() if isinstance(value, bool) else str(value)
