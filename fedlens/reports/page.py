"""HTML reports: one file in one style, which needs no network."""

import platform
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib import resources
from importlib.metadata import version
from pathlib import Path
from string import Template

import plotly.io  # type: ignore[import-untyped]  # plotly comes without types
import plotly.offline  # type: ignore[import-untyped]  # plotly comes without types

from fedlens.reports.plots import Figure
from fedlens.whole_file import replacing


def write_page(path: Path, *, title: str, lead: str, content: str) -> None:
    """Write a page completely or not at all; `content` is HTML, `title` and `lead` are texts."""
    page = Template(resources.files("fedlens.reports").joinpath("page.html").read_text(encoding="utf-8"))
    plotly_js = plotly.offline.get_plotlyjs()
    text = page.substitute(title=escape(title), lead=escape(lead), content=content, plotly=plotly_js)
    with replacing(path) as partial:
        partial.write_text(text, encoding="utf-8")


def section(title: str, note: str, content: str) -> str:
    """A card of a page: `content` is HTML, the others are texts."""
    told = f'<p class="note">{escape(note)}</p>\n' if note else ""
    return f"<section>\n<h2>{escape(title)}</h2>\n{told}{content}\n</section>\n"


def plot_section(title: str, note: str, figure: Figure, name: str) -> str:
    """A card with a figure, whose element has the id `plot-<name>`."""
    html: str = plotly.io.to_html(
        figure,
        full_html=False,
        include_plotlyjs=False,
        div_id=f"plot-{name}",
        config={"displayModeBar": False, "responsive": True},
        default_width="100%",
        default_height=f"{figure.layout.height}px",
    )
    return section(title, note, f'<div class="plot">{html}</div>')


def incidents(lines: Iterable[str]) -> str:
    """A card that lists what went wrong; nothing without lines."""
    items = "".join(f"<li>{escape(line)}</li>" for line in lines)
    return section("What went wrong on the way", "", f"<ul>{items}</ul>") if items else ""


def pair(left: str, right: str) -> str:
    """Two cards side by side."""
    return f'<div class="pair">\n{left}{right}</div>\n'


def setup_and_versions(setup: Mapping[str, str], versions: Mapping[str, str]) -> str:
    """A card of settings beside a card of versions, both by name."""
    return pair(section("How it was set up", "", _named(setup)), section("Versions", "", _named(versions)))


def versions_of(*packages: str) -> dict[str, str]:
    """The versions of FedLens, these packages, Python and the system."""
    return {
        "FedLens": version("fedlens"),
        **{name: version(name) for name in packages},
        "Python": platform.python_version(),
        "System": f"{platform.system()} on {platform.machine()}",
    }


def number_table(lines: Sequence[Sequence[str]]) -> str:
    """A table with a header line; each line begins with a name."""
    head = "".join(f"<th>{escape(name)}</th>" for name in lines[0])
    body = "".join(
        f"<tr><th>{escape(first)}</th>{''.join(f'<td>{escape(cell)}</td>' for cell in rest)}</tr>"
        for first, *rest in lines[1:]
    )
    return f'<div class="wide"><table class="numbers"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _named(values: Mapping[str, str]) -> str:
    rows = "".join(f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in values.items())
    return f"<table>{rows}</table>"
