"""The report of a study."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from fedlens.compare.columns import TITLES, Column
from fedlens.compare.plan import StudyPlan
from fedlens.compare.report import figures, tables
from fedlens.compare.report.summary import MethodSummary
from fedlens.compare.study import MethodSection, Study
from fedlens.reports import page
from fedlens.reports.confusion import confusion_section

CURVES: Mapping[Column, str] = {
    "global_accuracy": "The shared model on test photos that no client trains on. "
    "The band is the deviation over seeds.",
    "pooled_accuracy": "Each client's own model on its own test photos, all photos of a round's clients together: "
    "the model that it would use before it trains or, where it keeps one beside the shared model, that one after its "
    "training. The table of results has the mean over all clients at the end.",
}


def write_report(path: Path, study: Study, planned: StudyPlan, summaries: Sequence[MethodSummary]) -> None:
    """Write the report completely or not at all."""
    results = [tables.header(study, summaries), *tables.rows(study, summaries)]
    found = [("Results", tables.note(study, summaries), results), *tables.more_tables(study, summaries)]
    content = [
        *(page.section(title, note, page.number_table(lines)) for title, note, lines in found),
        *(_plots(summaries, column) for column in CURVES),
        *_confusions(planned, summaries),
        page.incidents(f"{summary.label}, {fault}" for summary in summaries for fault in summary.faults),
        page.setup_and_versions(_setup(study, planned), page.versions_of("torch", "numpy", "plotly")),
    ]
    page.write_page(
        path,
        title=f"FedLens: {study.title or study.name}",
        lead=study.paper or "Methods compared on the same clients, photos and seeds.",
        content="\n".join(content),
    )


def _plots(summaries: Sequence[MethodSummary], column: Column) -> str:
    if not any(summary.curves[column] for summary in summaries):
        return ""
    title = TITLES[column].capitalize()
    bytes_note = "The accuracy for the bytes of all clients' updates together, without downloads."
    by_rounds, by_bytes = figures.against_rounds(summaries, column), figures.against_bytes(summaries, column)
    return page.plot_section(f"{title} by round", CURVES[column], by_rounds, f"{column}-rounds") + page.plot_section(
        f"{title} by bytes sent", bytes_note, by_bytes, f"{column}-bytes"
    )


def _confusions(planned: StudyPlan, summaries: Sequence[MethodSummary]) -> list[str]:
    """A card for each method: the last global model's matrix or, without one, that of all clients' models together."""
    names = planned.runs[0].fleet.pool.class_names
    return [
        confusion_section(
            np.array(summary.confusion, np.int64),
            names,
            title=f"Confusion matrix: {summary.label}",
            model="the shared model" if "global_accuracy" in summary.columns else "each client's own model",
        )
        for summary in summaries
        if summary.confusion is not None
    ]


def _setup(study: Study, planned: StudyPlan) -> dict[str, str]:
    fleet = planned.runs[0].fleet
    train, test = (sum(map(len, side)) for side in (fleet.pool.train, fleet.pool.test))
    shared = {key.replace("_", " "): _shown(value) for key, value in sorted(study.settings.items())}
    own = {
        f"of {label}": ", ".join([method.method, study.bundles_of(label).objective, *_own(method)])
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
