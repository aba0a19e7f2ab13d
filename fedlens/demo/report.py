"""The report of a run: one HTML file that needs no network, for readers who know no federated learning."""

from collections.abc import Mapping
from datetime import UTC, datetime
from html import escape
from importlib import resources
from pathlib import Path
from string import Template

import plotly.io  # type: ignore[import-untyped]  # plotly comes without types
import plotly.offline  # type: ignore[import-untyped]  # plotly comes without types

from fedlens.demo import figures
from fedlens.demo.results import TaskFacts


def write_report(
    path: Path,
    facts: TaskFacts,
    *,
    photos: str,
    setup: Mapping[str, str],
    versions: Mapping[str, str],
    made_at: datetime,
    ways: str = "",
    details: str = "",
) -> None:
    """Write the report; the file is there in whole or not at all.

    Args:
        path: Of the HTML file; its folder must be there.
        facts: A task with at least one committed round.
        photos: What the photos are, to stand in a sentence: `scikit-learn's digits`.
        setup: What was set, by what it is called.
        versions: Of every tool that matters, by name.
        made_at: With a time zone.
        ways: HTML to begin with.
        details: HTML to stand behind the accuracy by round.
    """
    page = Template(resources.files("fedlens.demo").joinpath("report.html").read_text(encoding="utf-8"))
    first, last = facts.rounds[0], facts.rounds[-1]
    text = page.substitute(
        title=escape(f"FedLens: {len(facts.rounds)} rounds on {photos}"),
        lead=escape(
            f"{len(facts.clients) or last.members} emulated cameras trained one model together. Each kept its photos "
            "to itself and sent only the model's weights to a server, which averaged them."
        ),
        plotly=plotly.offline.get_plotlyjs(),
        ways=ways,
        key=_key_figures(facts),
        # With `ways` the client's own model and the shared one are compared in the details.
        details=details if ways else details + _local_training(facts),
        accuracy=plot_html(figures.global_accuracy(facts.rounds), "accuracy"),
        accuracy_note=escape(_accuracy_note(facts)),
        traffic=plot_html(figures.traffic(facts.rounds), "traffic"),
        traffic_note=escape(
            f"Over all clients, by round. With round {first.number} every client also fetches the programs, once."
        ),
        time=plot_html(figures.durations(facts.rounds), "time"),
        time_note=escape(
            "From the opening of a round to its new model, training of all clients on this machine included."
        ),
        incidents=_incidents(facts),
        settings=table_rows(setup),
        versions=table_rows(versions),
        footer=escape(
            f"Made by FedLens on {made_at.astimezone(UTC):%d %B %Y at %H:%M} UTC from the server's own record of the "
            "task. This file loads nothing from anywhere."
        ),
    )
    unfinished = path.with_suffix(".part")
    unfinished.write_text(text, encoding="utf-8")
    unfinished.replace(path)


def readable_bytes(count: float) -> str:
    """`3.4 MB`; decimal units."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            break
        count /= 1000
    return f"{count:.0f} {unit}" if unit == "bytes" or count >= 100 else f"{count:.1f} {unit}"


def _key_figures(facts: TaskFacts) -> str:
    measured = facts.measured
    up, down = sum(r.bytes_up for r in facts.rounds), sum(r.bytes_down for r in facts.rounds)
    seconds = sum(r.seconds for r in facts.rounds)
    untrained = facts.rounds[0].before
    figures_ = [
        ("accuracy at the end", f"{measured[-1][1]:.1%}" if measured else "not measured", "main"),
        ("accuracy before any training", f"{untrained.share:.1%}" if untrained else "not measured", ""),
        ("sent by all clients", readable_bytes(up), ""),
        (f"sent to all clients{_once(facts)}", readable_bytes(down), ""),
        (f"for {len(facts.rounds)} rounds", f"{seconds:.1f} s", ""),
    ]
    return "".join(
        f'<div class="{style}"><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>' for name, value, style in figures_
    )


def _once(facts: TaskFacts) -> str:
    """What a first download is of all that was sent, where it is most of it."""
    first, *others = [r.bytes_down for r in facts.rounds]
    if not others or first < 2 * sum(others):
        return ""
    return f", {readable_bytes(first - others[0])} of it once, for the frozen backbone"


def _accuracy_note(facts: TaskFacts) -> str:
    tested = next((r.model for r in reversed(facts.rounds) if r.model), None)
    if tested is None:
        return "No evaluator took part, so that the shared model was not measured."
    return (
        f"The averaged model after each round, on {tested.count:,} test photos that nobody trains on. "
        f"At the end {tested.correct:,} of them are classified correctly."
    )


def section(title: str, note: str, content: str) -> str:
    """A card of a page: `content` is HTML, the others are texts."""
    return f'<section>\n<h2>{escape(title)}</h2>\n<p class="note">{escape(note)}</p>\n{content}\n</section>\n'


def plot_section(title: str, note: str, figure: figures.Figure, name: str) -> str:
    """A card with a figure."""
    return section(title, note, f'<div class="plot">{plot_html(figure, name)}</div>')


def _local_training(facts: TaskFacts) -> str:
    figure = figures.before_and_after(facts.clients)
    return plot_section("What local training does for each client", _clients_note(facts), figure, "clients")


def _clients_note(facts: TaskFacts) -> str:
    if not facts.clients:
        return "Clients were not asked for their own results."
    gained = sum(client.after.correct > client.before.correct for client in facts.clients)
    lost = sum(client.after.correct < client.before.correct for client in facts.clients)
    last = max(client.round_number for client in facts.clients)
    return (
        f"Each client's own test photos in round {last}: with the model as downloaded, and after training it on that "
        f"round's photos. {gained} of {len(facts.clients)} clients got better by that, {lost} worse: alone, a client "
        "may learn its few photos by heart. The mean of all, the next shared model, knows more than each."
    )


def _incidents(facts: TaskFacts) -> str:
    lines = [*facts.abandoned, *(line for r in facts.rounds for line in r.left_out)]
    if not lines:
        return ""
    items = "".join(f"<li>{escape(line)}</li>" for line in lines)
    return f"<section><h2>What went wrong on the way</h2><ul>{items}</ul></section>"


def table_rows(values: Mapping[str, str]) -> str:
    """Lines of a table with a name and a value each."""
    return "".join(f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in values.items())


def plot_html(figure: figures.Figure, name: str) -> str:
    """A figure as a part of a page that has plotly."""
    html: str = plotly.io.to_html(
        figure,
        full_html=False,
        include_plotlyjs=False,
        div_id=f"plot-{name}",
        config={"displayModeBar": False, "responsive": True},
        default_width="100%",
        default_height=f"{figure.layout.height}px",
    )
    return html
