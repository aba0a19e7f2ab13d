"""The figures of a report, from plain values; each works alone and at any width."""

from collections.abc import Sequence
from math import floor
from typing import Any

import plotly.graph_objects as go  # type: ignore[import-untyped]  # plotly comes without types

from fedlens.demo.results import ClientFacts, RoundFacts

INK = "#1d2733"
MUTED = "#5b6875"
GRID = "#e4e8ed"
BLUE = "#1f5fbf"
PALE = "#9db7dc"
ORANGE = "#c8590b"
TEAL = "#0b7a75"
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"

Figure = Any


def global_accuracy(rounds: Sequence[RoundFacts]) -> Figure:
    """Accuracy of the global model on the evaluator's test photos, by round."""
    measured = [(r.number, 100 * r.model.share, r.model.correct, r.model.count) for r in rounds if r.model]
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
    _axes(figure, "test photos classified rightly", percent=True)
    return _styled(figure, 340)


def before_and_after(clients: Sequence[ClientFacts]) -> Figure:
    """For each client its accuracy before and after its last local training, joined by a line."""
    names = [client.name for client in clients]
    figure = go.Figure()
    for client in clients:
        figure.add_trace(
            go.Scatter(
                x=[100 * client.before.share, 100 * client.after.share],
                y=[client.name] * 2,
                mode="lines",
                line={"color": PALE, "width": 4},
                hoverinfo="skip",
                showlegend=False,
            )
        )
    for label, colour, symbol, values in (
        ("as downloaded", ORANGE, "circle-open", [c.before for c in clients]),
        ("after training on own photos", BLUE, "circle", [c.after for c in clients]),
    ):
        figure.add_trace(
            go.Scatter(
                x=[100 * v.share for v in values],
                y=names,
                customdata=[(v.correct, v.count) for v in values],
                name=label,
                mode="markers",
                marker={"color": colour, "size": 10, "symbol": symbol, "line": {"width": 2, "color": colour}},
                hovertemplate="%{y}, " + label + ": %{x:.0f} %<br>%{customdata[0]} of %{customdata[1]} photos right"
                "<extra></extra>",
            )
        )
    lowest = min((100 * min(c.before.share, c.after.share) for c in clients), default=0.0)
    start = 20 * floor(max(lowest - 2, 0) / 20)
    step = 20 if start < 60 else 10
    figure.update_xaxes(range=[start - 1, 102], ticksuffix=" %", tick0=0, dtick=step, gridcolor=GRID, zeroline=False)
    figure.update_yaxes(autorange="reversed", type="category", showgrid=False, ticks="", dtick=1, automargin=True)
    figure.update_layout(legend={"orientation": "h", "x": 0, "xanchor": "left", "y": 1.0, "yanchor": "bottom"})
    return _styled(figure, 110 + 22 * max(len(clients), 4), top=44)


def traffic(rounds: Sequence[RoundFacts]) -> Figure:
    """Bytes from and to all clients together, by round."""
    largest = max((max(r.bytes_up, r.bytes_down) for r in rounds), default=0)
    size, unit = (1e6, "MB") if largest >= 1e6 else (1e3, "kB")
    figure = go.Figure()
    for label, colour, values in (
        ("up: updates", BLUE, [r.bytes_up for r in rounds]),
        ("down: models and programs", TEAL, [r.bytes_down for r in rounds]),
    ):
        figure.add_trace(
            go.Bar(
                x=[r.number for r in rounds],
                y=[value / size for value in values],
                name=label,
                marker={"color": colour},
                hovertemplate=f"round %{{x}}, {label}: %{{y:.2f}} {unit}<extra></extra>",
            )
        )
    figure.update_layout(
        barmode="group",
        bargap=0.25,
        legend={"orientation": "h", "x": 0, "xanchor": "left", "y": 1.0, "yanchor": "bottom"},
    )
    _axes(figure, unit, rounds=rounds)
    return _styled(figure, 320, top=44)


def durations(rounds: Sequence[RoundFacts]) -> Figure:
    """Seconds from the opening of a round to its commit."""
    figure = go.Figure(
        go.Bar(
            x=[r.number for r in rounds],
            y=[r.seconds for r in rounds],
            marker={"color": BLUE},
            hovertemplate="round %{x}: %{y:.2f} s<extra></extra>",
        )
    )
    figure.update_layout(bargap=0.35)
    _axes(figure, "seconds", rounds=rounds)
    return _styled(figure, 320)


def _axes(figure: Figure, title: str, *, percent: bool = False, rounds: Sequence[RoundFacts] = ()) -> None:
    step = 1 if len(rounds) <= 12 else None
    figure.update_xaxes(title_text="round", showgrid=False, tick0=1, dtick=step, zeroline=False, tickformat="d")
    figure.update_yaxes(title_text=title, gridcolor=GRID, zeroline=False, rangemode="tozero", automargin=True)
    if percent:
        figure.update_yaxes(range=[0, 105], ticksuffix=" %", dtick=20)


def _styled(figure: Figure, height: int, top: int = 20) -> Figure:
    figure.update_layout(
        template="none",
        height=height,
        margin={"l": 10, "r": 16, "t": top, "b": 10},
        font={"family": FONT, "size": 13, "color": MUTED},
        hoverlabel={"font": {"family": FONT, "size": 13}},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
    )
    figure.update_xaxes(automargin=True, title_standoff=8, title_font_size=13, linecolor=GRID, fixedrange=True)
    figure.update_yaxes(title_standoff=8, title_font_size=13, fixedrange=True)
    return figure
