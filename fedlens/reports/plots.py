"""Colours and layout that all figures of the reports share."""

from typing import Any

INK = "#1d2733"
MUTED = "#5b6875"
GRID = "#e4e8ed"
BLUE = "#1f5fbf"
PALE = "#9db7dc"
ORANGE = "#c8590b"
TEAL = "#0b7a75"
# Values further apart than this factor need a logarithmic axis.
FAR_APART = 20.0
LEGEND = {"orientation": "h", "x": 0, "xanchor": "left", "y": 1.0, "yanchor": "bottom", "font": {"color": INK}}
_FONT = {
    "family": "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif",
    "size": 13,
}

Figure = Any


def styled(figure: Figure, height: int, top: int = 20) -> Figure:
    """The figure in the reports' style, `height` pixels high with a margin of `top` pixels."""
    figure.update_layout(
        template="none",
        height=height,
        margin={"l": 10, "r": 16, "t": top, "b": 10},
        font=_FONT | {"color": MUTED},
        hoverlabel={"font": _FONT},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
    )
    figure.update_xaxes(automargin=True, title_standoff=8, title_font_size=13, linecolor=GRID, fixedrange=True)
    figure.update_yaxes(title_standoff=8, title_font_size=13, fixedrange=True)
    return figure
