"""The plots of a study: accuracy against rounds, and against bytes sent."""

from collections.abc import Sequence
from dataclasses import dataclass

import plotly.graph_objects as go  # type: ignore[import-untyped]  # plotly comes without types

from fedlens.compare.columns import TITLES, Column
from fedlens.compare.report.summary import MethodSummary, Point
from fedlens.reports.plots import FAR_APART, GRID, LEGEND, Figure, styled

# One for each method; its variants, `<label>.<name>`, differ by dash.
COLOURS = (
    *("#1f5fbf", "#c8590b", "#0b7a75", "#8a3ffc", "#b3245c", "#6b7b00"),
    *("#00738f", "#7a4a21", "#5b6875", "#d12f7a", "#2f9e44", "#b08900"),
)
DASHES = ("solid", "dash", "dot", "dashdot")
# A curve of more points has no markers.
_MARKED = 30
# More curves have neither markers nor bands, and a taller figure for the legend's lines.
_FEW = 12
_LEGEND_LINE = 30  # pixels for about five names


@dataclass(frozen=True)
class _Curve:
    """One method's points with their places on the horizontal axis."""

    label: str
    xs: Sequence[float]
    points: Sequence[Point]


def against_rounds(summaries: Sequence[MethodSummary], column: Column) -> Figure:
    """Accuracy by committed rounds, with the deviation over seeds as a band."""
    curves = [_Curve(s.label, [float(p.rounds) for p in s.curves[column]], s.curves[column]) for s in summaries]
    figure = _drawn(curves, column, "round %{x}")
    most = max((p.rounds for s in summaries for p in s.curves[column]), default=0)
    # By default plotly puts ticks between few rounds, labelled with the nearest number.
    figure.update_xaxes(title_text="rounds committed", tickformat="d", dtick=1 if most <= 10 else None)
    return figure


def against_bytes(summaries: Sequence[MethodSummary], column: Column) -> Figure:
    """Accuracy by the bytes that all clients together have sent."""
    most = max((p.bytes_up for s in summaries for p in s.curves[column]), default=0.0)
    totals = [s.curves[column][-1].bytes_up for s in summaries if s.curves[column]]
    far_apart = min((total for total in totals if total > 0), default=most) * FAR_APART < most
    size, unit = next(((s, u) for s, u in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")) if most >= s), (1.0, "bytes"))
    curves = []
    for summary in summaries:
        points = [p for p in summary.curves[column] if p.bytes_up > 0 or not far_apart]
        curves.append(_Curve(summary.label, [p.bytes_up / size for p in points], points))
    figure = _drawn(curves, column, f"%{{x:.3g}} {unit}")
    title = f"{unit} sent by all clients together" + (", logarithmic" if far_apart else "")
    figure.update_xaxes(title_text=title, type="log" if far_apart else "linear")
    return figure


def _drawn(curves: Sequence[_Curve], column: Column, where: str) -> Figure:
    """The figure of the curves that have points; `where` formats a point's place on the horizontal axis."""
    figure = go.Figure()
    shown = [(curve, style) for curve, style in zip(curves, _styles(curves), strict=True) if curve.points]
    few = len(shown) <= _FEW
    for curve, style in shown:
        _add(figure, curve, style, where, few=few)
    figure.update_layout(legend=LEGEND | {"y": 1.02})
    figure.update_xaxes(showgrid=False, zeroline=False, rangemode="tozero")
    figure.update_yaxes(automargin=True, title_text=TITLES[column], ticksuffix=" %", gridcolor=GRID, zeroline=False)
    return styled(figure, 420 + (0 if few else _LEGEND_LINE * len(shown) // 5))


def _styles(curves: Sequence[_Curve]) -> list[tuple[str, str]]:
    """Each curve's colour and dash."""
    variants: dict[str, list[str]] = {}
    for curve in curves:
        variants.setdefault(curve.label.partition(".")[0], []).append(curve.label)
    order = list(variants)
    return [
        (
            COLOURS[order.index(base) % len(COLOURS)],
            # More methods than colours differ by dash, too.
            DASHES[(variants[base].index(curve.label) + order.index(base) // len(COLOURS)) % len(DASHES)],
        )
        for curve in curves
        for base in [curve.label.partition(".")[0]]
    ]


def _add(figure: Figure, curve: _Curve, style: tuple[str, str], where: str, *, few: bool) -> None:
    label, xs, points = curve.label, curve.xs, curve.points
    colour, dash = style
    means = [100 * point.value.mean for point in points]
    deviations = [100 * (point.value.deviation or 0.0) for point in points]
    band = list(zip(means, deviations, strict=True))
    if few and any(deviations):
        figure.add_trace(
            go.Scatter(
                x=[*xs, *reversed(xs)],
                y=[*(mean + spread for mean, spread in band), *(mean - spread for mean, spread in reversed(band))],
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
