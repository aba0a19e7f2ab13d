"""The demo's figures, from plain values; each works alone and at any width."""

from collections.abc import Sequence
from math import floor

import plotly.graph_objects as go  # type: ignore[import-untyped]  # plotly comes without types

from fedlens.demo.results import ClientFacts, RoundFacts
from fedlens.reports.plots import BLUE, FAR_APART, GRID, INK, LEGEND, ORANGE, PALE, TEAL, Figure, styled


def global_accuracy(rounds: Sequence[RoundFacts]) -> Figure:
    """Accuracy of the global model on the evaluator's test photos, by round."""
    measured = [(r.number, 100 * r.model.ratio, r.model.correct, r.model.count) for r in rounds if r.model]
    figure = go.Figure(
        go.Scatter(
            x=[number for number, *_ in measured],
            y=[percent for _, percent, *_ in measured],
            customdata=[counts for *_, c, n in measured for counts in [(c, n)]],
            mode="lines+markers+text",
            text=[
                f"{percent:.0f} %" if i in (0, len(measured) - 1) else "" for i, (_, percent, *_) in enumerate(measured)
            ],
            textposition=["bottom right", *["top center"] * (len(measured) - 1)],
            textfont={"color": INK, "size": 13},
            cliponaxis=False,
            line={"color": BLUE, "width": 3},
            marker={"size": 8},
            hovertemplate="round %{x}: %{y:.1f} %<br>%{customdata[0]} of %{customdata[1]} photos right<extra></extra>",
        )
    )
    _axes(figure, "test photos classified correctly", rounds)
    figure.update_yaxes(range=[0, 105], ticksuffix=" %", dtick=20)
    return styled(figure, 340)


def before_and_after(clients: Sequence[ClientFacts]) -> Figure:
    """For each client its accuracy before and after its last local training."""
    return dumbbells(
        [client.name for client in clients],
        [
            ("as downloaded", ORANGE, "circle-open", [client.before.ratio for client in clients]),
            ("after training on own photos", BLUE, "circle", [client.after.ratio for client in clients]),
        ],
    )


def dumbbells(names: Sequence[str], series: Sequence[tuple[str, str, str, Sequence[float]]]) -> Figure:
    """A line for each name, with one marker for each series, joined by a line.

    Args:
        names: From top to bottom.
        series: Label, colour, symbol, and a share of 1 for each name.
    """
    figure = go.Figure()
    for place, name in enumerate(names if len(series) > 1 else ()):
        ends = [100 * values[place] for *_, values in series]
        figure.add_trace(
            go.Scatter(
                x=[min(ends), max(ends)],
                y=[name] * 2,
                mode="lines",
                line={"color": PALE, "width": 4},
                hoverinfo="skip",
                showlegend=False,
            )
        )
    for label, colour, symbol, values in series:
        figure.add_trace(
            go.Scatter(
                x=[100 * value for value in values],
                y=names,
                name=label,
                mode="markers",
                marker={"color": colour, "size": 10, "symbol": symbol, "line": {"width": 2, "color": colour}},
                hovertemplate="%{y}, " + label + ": %{x:.0f} %<extra></extra>",
                showlegend=len(series) > 1,
            )
        )
    lowest = min((100 * value for *_, values in series for value in values), default=0.0)
    start = 20 * floor(max(lowest - 2, 0) / 20)
    step = 20 if start < 60 else 10
    figure.update_xaxes(range=[start - 1, 102], ticksuffix=" %", tick0=0, dtick=step, gridcolor=GRID, zeroline=False)
    bottom = len(names) - 0.4
    figure.update_yaxes(range=[bottom, -0.6], type="category", showgrid=False, ticks="", dtick=1, automargin=True)
    figure.update_layout(legend=LEGEND)
    return styled(figure, 110 + 22 * max(len(names), 4), top=44)


def traffic(rounds: Sequence[RoundFacts]) -> Figure:
    """Bytes from and to all clients together, by round."""
    largest = max((max(r.bytes_up, r.bytes_down) for r in rounds), default=0)
    size, unit = (1e6, "MB") if largest >= 1e6 else (1e3, "kB")
    up, down = [r.bytes_up / size for r in rounds], [r.bytes_down / size for r in rounds]
    figure = go.Figure(_bars(rounds, up, BLUE, unit, "up: updates"))
    figure.add_trace(_bars(rounds, down, TEAL, unit, "down: models and programs"))
    figure.update_layout(barmode="group", bargap=0.25, legend=LEGEND)
    _axes(figure, unit, rounds)
    sent = [value for r in rounds for value in (r.bytes_up, r.bytes_down) if value]
    if sent and max(sent) > FAR_APART * min(sent):
        figure.update_yaxes(type="log", dtick=1, rangemode="normal")
    return styled(figure, 320, top=44)


def durations(rounds: Sequence[RoundFacts]) -> Figure:
    """Seconds from the opening of a round to its commit."""
    figure = go.Figure(_bars(rounds, [r.seconds for r in rounds], BLUE, "s"))
    figure.update_layout(bargap=0.35)
    _axes(figure, "seconds", rounds)
    return styled(figure, 320)


def _bars(rounds: Sequence[RoundFacts], values: Sequence[float], colour: str, unit: str, label: str = "") -> Figure:
    """A bar for each round."""
    return go.Bar(
        x=[r.number for r in rounds],
        y=values,
        name=label,
        marker={"color": colour},
        hovertemplate=f"round %{{x}}{label and f', {label}'}: %{{y:.2f}} {unit}<extra></extra>",
    )


def _axes(figure: Figure, title: str, rounds: Sequence[RoundFacts]) -> None:
    ends = {"range": [rounds[0].number - 0.6, rounds[-1].number + 0.6]} if rounds else {}
    figure.update_xaxes(title_text="round", showgrid=False, zeroline=False, tickformat="d", **ends)
    if len(rounds) <= 25:
        figure.update_xaxes(tick0=1, dtick=1 if len(rounds) <= 12 else 2)
    figure.update_yaxes(title_text=title, gridcolor=GRID, zeroline=False, rangemode="tozero", automargin=True)
