"""A study's tables: for the terminal, in Markdown, and as rows for the report."""

from collections.abc import Mapping, Sequence

from rich.table import Table
from rich.text import Text

from fedlens.compare.columns import COLUMNS, EXAMINED, MAIN, MOMENTS, TITLES, Column
from fedlens.compare.report.differences import CONFIDENCE, Difference, baseline_of, differences
from fedlens.compare.report.summary import MethodSummary, Value
from fedlens.compare.study import Study
from fedlens.reports.tables import readable_bytes

_WIDE = 150
PER_ROUND = "sent by a client in a round"
_LEFT_OUT = (*(title for column, title in TITLES.items() if "accuracy" not in column), "sent to clients", PER_ROUND)


def header(study: Study, summaries: Sequence[MethodSummary]) -> list[str]:
    """The names of the columns; a star marks the paper's own."""
    shown = columns_of(study, summaries)
    titles = [f"{TITLES[column]}{' *' if column in study.paper_columns else ''}" for column in shown]
    published = [f"published {TITLES[column]}" for column in _published(study)]
    return ["method", *titles, *published, "sent by clients", PER_ROUND, "sent to clients", "time of a run"]


def rows(study: Study, summaries: Sequence[MethodSummary]) -> list[list[str]]:
    """A row for each method, under `header`."""
    shown = columns_of(study, summaries)
    return [
        [
            summary.label,
            *(percent(summary.columns.get(column)) for column in shown),
            *(_given(study.methods[summary.label].published, column) for column in _published(study)),
            readable_bytes(summary.bytes_up),
            "-" if summary.bytes_up_each is None else readable_bytes(summary.bytes_up_each),
            readable_bytes(summary.bytes_down),
            f"{summary.seconds:.0f} s",
        ]
        for summary in summaries
    ]


def note(study: Study, summaries: Sequence[MethodSummary]) -> str:
    """An explanation of the columns."""
    over = f"mean and deviation over {len(study.seeds)} seeds" if len(study.seeds) > 1 else "one seed"
    stars = " * The paper reports this column." if study.paper_columns else ""
    shown = columns_of(study, summaries)
    examined = (
        " Own people, other clients' people, people never met: each client's model at the end, on the test photos of "
        "the people it learns from, on those of the other clients' people, and on all photos of people who have no "
        "client; means over clients."
        if any(column in EXAMINED for column in shown)
        else ""
    )
    tested = "all photos of people never met" if "unseen_accuracy" in shown else "all test photos"
    return (
        f"Percent of test photos, {over}. Global: the shared model on {tested}. Personal: each client's own "
        f"model on its own test photos; accuracy is the mean over clients, precision, recall and what is "
        f"pooled are of all clients' photos together.{examined}{stars}{_absent(study, summaries)}"
    )


def _absent(study: Study, summaries: Sequence[MethodSummary]) -> str:
    """What the tables lack: runs that failed or have not ended, and differences without a baseline."""
    ended = {summary.label: summary.by_seed for summary in summaries}
    lacking = {label: [seed for seed in study.seeds if seed not in ended.get(label, ())] for label in study.methods}
    runs = [f"{label} (seed {', '.join(map(str, seeds))})" for label, seeds in lacking.items() if seeds]
    told = f" There are no results of {'; '.join(runs)}." if runs else ""
    fewer = [f"{s.label} (seed {seed}: {found} clients)" for s in summaries for seed, found in s.measured.items()]
    told += f" Personal figures leave out clients that could not be measured: {'; '.join(fewer)}." if fewer else ""
    if len(summaries) > 1 and not differences(study, summaries):
        told += (
            " There are no differences: no method with the same seeds is the others' baseline; --baseline names one."
        )
    return told


def columns_of(study: Study, summaries: Sequence[MethodSummary]) -> list[Column]:
    """The columns of the main table, and those that the paper has numbers for, that at least one method has."""
    return [
        column
        for column in COLUMNS
        if column in (*MAIN, *study.paper_columns) and any(column in summary.columns for summary in summaries)
    ]


def moment_table(summaries: Sequence[MethodSummary]) -> list[list[str]]:
    """Header and rows: personal accuracy at all moments, mean over clients and pooled; empty with a single moment."""
    shown = [m for m in MOMENTS if any(m.mean in summary.columns for summary in summaries)]
    columns: list[Column] = [*(moment.mean for moment in shown), *(moment.pooled for moment in shown)]
    if len(shown) < 2:
        return []
    return [
        ["method", *(TITLES[column] for column in columns)],
        *([summary.label, *(percent(summary.columns.get(column)) for column in columns)] for summary in summaries),
    ]


def difference_table(study: Study, summaries: Sequence[MethodSummary]) -> list[list[str]]:
    """Header and rows: each method's paired differences to its baseline; empty without a method that has one."""
    found = {(each.label, each.column): each for each in differences(study, summaries)}
    shown: list[Column] = [column for column in COLUMNS if any(column == each for _, each in found)]
    lines = [["method", "minus", *(TITLES[column] for column in shown)]]
    for label in dict.fromkeys(label for label, _ in found):
        line = [label, baseline_of(study, label) or "-"]
        for column in shown:
            gain, p = _gain(found[label, column]) if (label, column) in found else ("-", "-")
            line.append(gain if p == "-" else f"{gain}, p {p}")
        lines.append(line)
    return lines if found else []


def column_table(study: Study, summaries: Sequence[MethodSummary], columns: Sequence[Column]) -> list[list[str]]:
    """Header and rows: these columns, and each method's paired difference to its baseline in each of them."""
    paired = {(found.label, found.column): found for found in differences(study, summaries, columns)}
    lines = [["method", *(text for column in columns for text in (TITLES[column], "over the baseline (95 %)", "p"))]]
    for summary in summaries:
        line = [summary.label]
        for column in columns:
            found = paired.get((summary.label, column))
            line += [percent(summary.columns.get(column)), *(("-", "-") if found is None else _gain(found))]
        lines.append(line)
    return lines


def _gain(found: Difference) -> tuple[str, str]:
    """The difference with its interval, in points, and p."""
    within = (
        "" if found.interval is None else " ({:+.1f} to {:+.1f})".format(*(100 * bound for bound in found.interval))
    )
    return f"{100 * found.mean:+.1f}{within}", "-" if found.p is None else f"{found.p:.2g}"


def seed_table(study: Study, summaries: Sequence[MethodSummary]) -> list[list[str]]:
    """Header and rows: accuracies by seed, and each one's gain over the baseline; empty for a single seed."""
    shown: list[Column] = [column for column in columns_of(study, summaries) if column.endswith("_accuracy")]
    seeds = study.seeds
    if len(seeds) == 1:
        return []
    found = {summary.label: summary.by_seed for summary in summaries}
    names = ", ".join(map(str, seeds))
    gains = ["over the baseline"] if differences(study, summaries) else []
    lines = [["method", *(title for c in shown for title in (f"{TITLES[c]}: seeds {names}", *gains))]]
    for label, by_seed in found.items():
        baseline = found.get(baseline_of(study, label) or "", {})
        line = [label]
        for column in shown:
            own, other = ([of.get(seed, {}).get(column) for seed in seeds] for of in (by_seed, baseline))
            line.append(_listed(own, "{:.1f}"))
            if gains:
                pairs = zip(own, other, strict=True)
                over = [None if a is None or b is None else a - b for a, b in pairs]
                line.append("-" if baseline is by_seed else _listed(over, "{:+.1f}"))
        lines.append(line)
    return lines


def camera_table(summaries: Sequence[MethodSummary]) -> list[list[str]]:
    """Header and rows: the final examination by camera; empty if photos have no cameras."""
    keys = list(dict.fromkeys(key for summary in summaries for key in summary.by_camera))
    lines = [["method", *(f"{TITLES[column]}, {camera}" for column, camera in keys)]] if keys else []
    for summary in summaries if keys else ():
        lines.append([summary.label, *(percent(summary.by_camera.get(key)) for key in keys)])
    return lines


def rich_table(study: Study, summaries: Sequence[MethodSummary], width: int) -> Table:
    """For a terminal of `width` columns; a narrow one leaves precision, recall and downloads to the report."""
    names = header(study, summaries)
    shown = [i for i, name in enumerate(names) if width >= _WIDE or not name.startswith(_LEFT_OUT)]
    table = Table(title=study.title or study.name, caption=note(study, summaries), caption_justify="left")
    for i in shown:
        table.add_column(Text(names[i]), justify="right" if i else "left", no_wrap=i == 0)
    for row in rows(study, summaries):
        table.add_row(*(Text(row[i]) for i in shown))
    return table


def markdown(study: Study, summaries: Sequence[MethodSummary], columns: Sequence[Column] = ()) -> str:
    """All tables as a Markdown page; with `columns` one table of these, with paired differences to the baseline."""
    if columns:
        return f"# {study.title or study.name}\n\n{markdown_table(column_table(study, summaries, columns))}\n"
    lines = [header(study, summaries), *rows(study, summaries)]
    text = f"# {study.title or study.name}\n\n{markdown_table(lines)}\n\n{note(study, summaries)}\n"
    for title, explanation, table in more_tables(study, summaries):
        text += f"\n## {title}\n\n{markdown_table(table)}\n\n{explanation}\n"
    if faults := [f"- {summary.label}, {fault}" for summary in summaries for fault in summary.faults]:
        text += "\nWhat went wrong on the way:\n\n" + "\n".join(faults) + "\n"
    return text


def more_tables(study: Study, summaries: Sequence[MethodSummary]) -> list[tuple[str, str, list[list[str]]]]:
    """Title, explanation and lines of each further table that is not empty."""
    chosen = study.baseline or "the method whose clients train alone with the same head and models"
    moments = (
        "Percent of each client's own test photos at the end, the mean over clients and of all photos pooled. First "
        "with the model that a client would use; then after one more local training from there; last with the model "
        "of the client's own last training."
    )
    gains = f"Percent; the baseline is {chosen}." if differences(study, summaries) else "Percent."
    paired = (
        f"In points, paired by seed; the baseline is {chosen}. The interval holds the true difference with "
        f"{CONFIDENCE:.0%} confidence (Student's t), p is of the paired t-test. Of many pairs, some have a small p by "
        "chance. One seed, or seeds that all differ by as much, give neither."
    )
    cameras = "Percent of the photos that were taken with a camera, over all clients together."
    found = [
        ("Before and after training", moments, moment_table(summaries)),
        ("Differences", paired, difference_table(study, summaries)),
        ("Seed by seed", gains, seed_table(study, summaries)),
        ("By camera", cameras, camera_table(summaries)),
    ]
    return [each for each in found if each[2]]


def markdown_table(lines: Sequence[Sequence[str]]) -> str:
    """A table in Markdown, from a header line and rows that begin with a name."""
    ruled = [lines[0], ["---", *["---:"] * (len(lines[0]) - 1)], *lines[1:]]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in ruled)


def _listed(values: Sequence[float | None], form: str) -> str:
    if all(value is None for value in values):
        return "-"
    return ", ".join("-" if value is None else form.format(100 * value) for value in values)


def percent(value: Value | None) -> str:
    """The mean in percent, with its deviation over seeds; a dash for None."""
    if value is None:
        return "-"
    deviation = "" if value.deviation is None else f" ± {100 * value.deviation:.1f}"
    return f"{100 * value.mean:.1f}{deviation}"


def _given(published: Mapping[Column, float], column: Column) -> str:
    return f"{published[column]:g}" if column in published else "-"


def _published(study: Study) -> list[Column]:
    return [column for column in COLUMNS if any(column in method.published for method in study.methods.values())]
