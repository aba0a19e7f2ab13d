"""The plots of a study: accuracy against rounds, and against bytes sent."""

from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go  # type: ignore[import-untyped]  # plotly comes without types

from fedlens.compare.columns import TITLES, Column
from fedlens.compare.summary import MethodSummary, Point
from fedlens.demo.figures import FONT, GRID, INK, MUTED

# One for each method; its variants, `<label>.<name>`, differ by dash.
COLOURS = (
    *("#1f5fbf", "#c8590b", "#0b7a75", "#8a3ffc", "#b3245c", "#6b7b00"),
    *("#00738f", "#7a4a21", "#5b6875", "#d12f7a", "#2f9e44", "#b08900"),
)
DASHES = ("solid", "dash", "dot", "dashdot")
# A curve of more points than that has no markers.
_MARKED = 30
# More curves than that have neither markers nor bands, and a taller figure, whose legend takes many lines.
_FEW = 12
_LEGEND_LINE = 30  # pixels for about five names
# Totals further apart than this need a logarithmic axis.
_FAR_APART = 20.0

Figure = Any


def against_rounds(summaries: Sequence[MethodSummary], column: Column) -> Figure:
    """Accuracy by committed rounds, with the deviation over seeds as a band."""
    figure = go.Figure()
    for summary, style in zip(summaries, _styles(summaries), strict=True):
        points = summary.curves[column]
        xs = [float(p.rounds) for p in points]
        _add(figure, style, summary.label, xs, points, "round %{x}", few=len(summaries) <= _FEW)
    most = max((p.rounds for s in summaries for p in s.curves[column]), default=0)
    # Left to itself it also puts ticks between a few rounds, and calls them by the nearest.
    figure.update_xaxes(title_text="rounds committed", tickformat="d", dtick=1 if most <= 10 else None)
    return _styled(figure, column)


def against_bytes(summaries: Sequence[MethodSummary], column: Column) -> Figure:
    """Accuracy by what all clients together have sent."""
    most = max((p.bytes_up for s in summaries for p in s.curves[column]), default=0.0)
    totals = [s.curves[column][-1].bytes_up for s in summaries if s.curves[column]]
    far_apart = min((total for total in totals if total > 0), default=most) * _FAR_APART < most
    size, unit = next(((s, u) for s, u in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")) if most >= s), (1.0, "bytes"))
    figure = go.Figure()
    for summary, style in zip(summaries, _styles(summaries), strict=True):
        points = [p for p in summary.curves[column] if p.bytes_up > 0 or not far_apart]
        xs = [p.bytes_up / size for p in points]
        _add(figure, style, summary.label, xs, points, f"%{{x:.3g}} {unit}", few=len(summaries) <= _FEW)
    title = f"{unit} sent by all clients together" + (", logarithmic" if far_apart else "")
    figure.update_xaxes(title_text=title, type="log" if far_apart else "linear")
    return _styled(figure, column)


def _styles(summaries: Sequence[MethodSummary]) -> list[tuple[str, str]]:
    """Colour and dash of each."""
    variants: dict[str, list[str]] = {}
    for summary in summaries:
        variants.setdefault(summary.label.partition(".")[0], []).append(summary.label)
    order = list(variants)
    return [
        (
            COLOURS[order.index(base) % len(COLOURS)],
            DASHES[variants[base].index(summary.label) % len(DASHES)],
        )
        for summary in summaries
        for base in [summary.label.partition(".")[0]]
    ]


def _add(
    figure: Figure,
    style: tuple[str, str],
    label: str,
    xs: list[float],
    points: Sequence[Point],
    where: str,
    *,
    few: bool,
) -> None:
    if not points:
        return
    colour, dash = style
    means = [100 * point.value.mean for point in points]
    deviations = [100 * (point.value.deviation or 0.0) for point in points]
    if few and any(deviations):
        figure.add_trace(
            go.Scatter(
                x=[*xs, *reversed(xs)],
                y=[
                    *(mean + spread for mean, spread in zip(means, deviations, strict=True)),
                    *(mean - spread for mean, spread in reversed(list(zip(means, deviations, strict=True)))),
                ],
                mode="lines",
                fill="toself",
                fillcolor=colour,
                opacity=0.12,
                line={"width": 0},
                hoverinfo="skip",
                showlegend=False,
                legendgroup=label,
            )
        )
    figure.add_trace(
        go.Scatter(
            x=xs,
            y=means,
            name=label,
            legendgroup=label,
            mode="lines+markers" if few and len(points) <= _MARKED else "lines",
            line={"color": colour, "width": 2.5, "dash": dash},
            marker={"size": 6},
            hovertemplate=f"{label}, {where}: %{{y:.1f}} %<extra></extra>",
        )
    )


def _styled(figure: Figure, column: Column) -> Figure:
    curves = sum(trace.name is not None for trace in figure.data)
    legend = 0 if curves <= _FEW else _LEGEND_LINE * curves // 5
    figure.update_layout(
        template="none",
        height=420 + legend,
        margin={"l": 10, "r": 16, "t": 20, "b": 10},
        font={"family": FONT, "size": 13, "color": MUTED},
        hoverlabel={"font": {"family": FONT, "size": 13}},
        legend={"orientation": "h", "x": 0, "xanchor": "left", "y": 1.02, "yanchor": "bottom", "font": {"color": INK}},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
    )
    figure.update_xaxes(
        automargin=True, title_standoff=8, showgrid=False, zeroline=False, linecolor=GRID, fixedrange=True,
        rangemode="tozero",
    )  # fmt: skip
    figure.update_yaxes(
        automargin=True, title_text=TITLES[column], title_standoff=8, ticksuffix=" %", gridcolor=GRID, zeroline=False,
        fixedrange=True,
    )  # fmt: skip
    return figure
