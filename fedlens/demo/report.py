"""The demo's report, for readers who know no federated learning."""

from collections.abc import Mapping
from datetime import UTC, datetime
from html import escape
from pathlib import Path

from fedlens.demo import figures
from fedlens.demo.results import TaskFacts
from fedlens.reports.page import incidents, pair, plot_section, setup_and_versions, write_page
from fedlens.reports.tables import readable_bytes


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
    """Write the report completely or not at all.

    Args:
        path: HTML file in an existing folder.
        facts: A task with at least one committed round.
        photos: Name of the photos, for use in a sentence: `scikit-learn's digits`.
        setup: Settings by name.
        versions: Versions of every important tool, by name.
        made_at: With a time zone.
        ways: HTML of the comparison of ways to learn, at the beginning.
        details: HTML behind the accuracy by round.
    """
    first, last = facts.rounds[0], facts.rounds[-1]
    content = [
        ways,
        _key_figures(facts),
        plot_section(
            "The shared model gets better", _accuracy_note(facts), figures.global_accuracy(facts.rounds), "accuracy"
        ),
        # With `ways` the details compare the client's own model and the shared one.
        details if ways else details + _local_training(facts),
        pair(
            plot_section(
                "Data sent",
                f"Over all clients, by round. In round {first.number} every client also fetches the programs, once.",
                figures.traffic(facts.rounds),
                "traffic",
            ),
            plot_section(
                "Time",
                "From the opening of a round to its new model, including the training of all clients on this machine.",
                figures.durations(facts.rounds),
                "time",
            ),
        ),
        incidents([*facts.abandoned, *(line for r in facts.rounds for line in r.left_out)]),
        setup_and_versions(setup, versions),
        f"<footer>Made by FedLens on {made_at.astimezone(UTC):%d %B %Y at %H:%M} UTC from the server's own record of "
        "the task. This file loads nothing from anywhere.</footer>",
    ]
    write_page(
        path,
        title=f"FedLens: {len(facts.rounds)} rounds on {photos}",
        lead=f"{len(facts.clients) or last.members} emulated cameras trained one model together. Each kept its photos "
        "to itself and sent only the model's weights to a server, which averaged them.",
        content="\n".join(content),
    )


def _key_figures(facts: TaskFacts) -> str:
    measured = facts.measured
    up, down = sum(r.bytes_up for r in facts.rounds), sum(r.bytes_down for r in facts.rounds)
    seconds = sum(r.seconds for r in facts.rounds)
    untrained = facts.rounds[0].before
    values = [
        ("accuracy at the end", f"{measured[-1][1]:.1%}" if measured else "not measured", "main"),
        ("accuracy before any training", f"{untrained.ratio:.1%}" if untrained else "not measured", ""),
        ("sent by all clients", readable_bytes(up), ""),
        (f"sent to all clients{_first_download(facts)}", readable_bytes(down), ""),
        (f"for {len(facts.rounds)} rounds", f"{seconds:.1f} s", ""),
    ]
    items = "".join(
        f'<div class="{style}"><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>' for name, value, style in values
    )
    return f'<dl class="key">{items}</dl>'


def _first_download(facts: TaskFacts) -> str:
    """The bytes that only the first round's downloads hold, where they are most of all downloads."""
    first, *others = [r.bytes_down for r in facts.rounds]
    if not others or first < 2 * sum(others):
        return ""
    return f", {readable_bytes(first - others[0])} of it once, for the frozen backbone"


def _accuracy_note(facts: TaskFacts) -> str:
    tested = next((r.model for r in reversed(facts.rounds) if r.model), None)
    if tested is None:
        return "No evaluator took part, so the shared model was not measured."
    return (
        f"The averaged model after each round, on {tested.count:,} test photos that no client trains on. "
        f"At the end it classifies {tested.correct:,} of them correctly."
    )


def _local_training(facts: TaskFacts) -> str:
    title, figure = "What local training does for each client", figures.before_and_after(facts.clients)
    return plot_section(title, _clients_note(facts), figure, "clients")


def _clients_note(facts: TaskFacts) -> str:
    if not facts.clients:
        return "Clients did not report results of their own."
    gained = sum(client.after.correct > client.before.correct for client in facts.clients)
    lost = sum(client.after.correct < client.before.correct for client in facts.clients)
    last = max(client.round_number for client in facts.clients)
    return (
        f"Each client's own test photos in round {last}: with the downloaded model, and after training it on the "
        f"client's photos of that round. {gained} of {len(facts.clients)} clients got better by it, {lost} worse: a "
        "client that trains alone may learn its few photos by heart. The mean of all, the next shared model, knows "
        "more than each."
    )
