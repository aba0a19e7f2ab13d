"""The report's sections on the comparison: accuracy by way of learning, class and client, and the remaining errors."""

import base64
from html import escape
from io import BytesIO

import plotly.graph_objects as go  # type: ignore[import-untyped]  # plotly comes without types
from PIL import Image

from fedlens.demo.comparison import Comparison
from fedlens.demo.figures import dumbbells
from fedlens.demo.results import TaskFacts
from fedlens.reports.confusion import confusion_section
from fedlens.reports.page import plot_section, section
from fedlens.reports.plots import BLUE, INK, ORANGE, TEAL, Figure, styled
from fedlens.reports.tables import readable_bytes
from fedlens_proto import photos

PICTURE_SIDE = 104
MOST_PICTURES = 30


def sections(comparison: Comparison, facts: TaskFacts) -> tuple[str, str]:
    """The HTML before the accuracy by round, empty where no client trained alone, and the HTML behind it."""
    first = _together_alone_pooled(comparison, facts) if comparison.alone else ""
    confusion = confusion_section(comparison.confusion, comparison.class_names)
    return first, _by_class(comparison) + confusion + _errors(comparison) + _by_client(comparison)


def _bars(comparison: Comparison, facts: TaskFacts) -> Figure:
    """The accuracy of each way of learning, with the bytes that it sends."""
    assert comparison.pooled is not None  # trained beside the clients
    rows = [
        ("alone", comparison.alone_accuracy, ORANGE, "nothing sent"),
        ("together", comparison.together.accuracy(), BLUE, f"{readable_bytes(_sent(facts))} of weights sent"),
        ("pooled", comparison.pooled.accuracy(), TEAL, f"{readable_bytes(comparison.photo_bytes)} of photos sent"),
    ]
    figure = go.Figure(
        go.Bar(
            x=[100 * accuracy for _, accuracy, *_ in rows],
            y=[name for name, *_ in rows],
            orientation="h",
            marker={"color": [colour for _, _, colour, _ in rows]},
            text=[f"<b>{accuracy:.1%}</b>  {sent}" for _, accuracy, _, sent in rows],
            textposition=["inside" if accuracy > 0.5 else "outside" for _, accuracy, *_ in rows],
            insidetextanchor="end",
            textfont={"size": 14},
            outsidetextfont={"color": INK},
            insidetextfont={"color": "white"},
            cliponaxis=False,
            hovertemplate="%{y}: %{x:.1f} %<extra></extra>",
        )
    )
    figure.update_xaxes(range=[0, 100], ticksuffix=" %", dtick=20, zeroline=False)
    figure.update_yaxes(
        autorange="reversed", ticks="", showgrid=False, automargin=True, tickfont={"size": 14, "color": INK}
    )
    figure.update_layout(bargap=0.3)
    return styled(figure, 210)


def _together_alone_pooled(comparison: Comparison, facts: TaskFacts) -> str:
    rounds = max(1, len(facts.rounds))
    clients = max((r.members for r in facts.rounds), default=1)
    each = _sent(facts) / rounds / clients
    note = (
        f"All three classify the same {len(comparison.labels):,} test photos, which nobody trains on. "
        f"Alone: the mean of {len(comparison.alone)} clients, each trained on its own photos only. "
        f"Together: the shared model, for which each client sends {readable_bytes(each)} in a round and no photo. "
        "Pooled: one server that has received all photos."
    )
    return plot_section("Together, without sharing photos", note, _bars(comparison, facts), "ways")


def _by_class(comparison: Comparison) -> str:
    rows = [(name, comparison.rows_of(label)) for label, name in enumerate(comparison.class_names)]
    tested = [(f"{name} ({len(found)})", found) for name, found in rows if len(found)]
    series = [("together", BLUE, "circle", [comparison.together.accuracy(found) for _, found in tested])]
    if comparison.alone:
        alone = [sum(a.accuracy(found) for a in comparison.alone) / len(comparison.alone) for _, found in tested]
        series.insert(0, ("alone, the mean client", ORANGE, "circle-open", alone))
    figure = dumbbells([name for name, _ in tested], series)
    note = "The part of each class's test photos that is classified correctly; in brackets the number of photos."
    return plot_section("By class", note, figure, "classes")


def _by_client(comparison: Comparison) -> str:
    if not comparison.alone:
        return ""
    tested = [
        (f"{name} ({len(own)})", alone.accuracy(own), comparison.together.accuracy(own))
        for name, alone, own in zip(comparison.names, comparison.alone, comparison.own, strict=True)
        if len(own)
    ]
    better = sum(together > alone for _, alone, together in tested)
    worse = sum(together < alone for _, alone, together in tested)
    figure = dumbbells(
        [name for name, *_ in tested],
        [
            ("alone", ORANGE, "circle-open", [alone for _, alone, _ in tested]),
            ("together", BLUE, "circle", [together for *_, together in tested]),
        ],
    )
    note = (
        f"On each client's own test photos, in brackets their number: its own model, and the shared one. {better} of "
        f"{len(tested)} clients are better off together, {worse} alone. A client whose photos are of few classes has "
        "an easy task alone: its model need not know the others."
    )
    return plot_section("By client", note, figure, "gains")


def _errors(comparison: Comparison) -> str:
    wrong = comparison.mistakes
    if not wrong:
        return ""
    note = (
        f"{len(wrong):,} of {len(comparison.labels):,} test photos, the most confident mistakes first"
        f"{f': the first {MOST_PICTURES}' if len(wrong) > MOST_PICTURES else ''}. These pictures are on this machine "
        "and inside this file: do not pass it on where the photos are private."
    )
    shown = "".join(_mistake(comparison, row) for row in wrong[:MOST_PICTURES])
    return section("Still wrong", note, f'<div class="pictures">{shown}</div>')


def _mistake(comparison: Comparison, row: int) -> str:
    names, predicted = comparison.class_names, comparison.together
    return (
        f'<figure><img alt="" width="{PICTURE_SIDE}" height="{PICTURE_SIDE}" '
        f'src="data:image/jpeg;base64,{_picture(comparison, row)}">'
        f"<figcaption><b>{escape(names[comparison.labels[row]])}</b><br>"
        f"taken for {escape(names[predicted.labels[row]])}, {predicted.probabilities[row]:.0%}</figcaption></figure>"
    )


def _picture(comparison: Comparison, row: int) -> str:
    pixels = photos.load(comparison.paths[row], PICTURE_SIDE, PICTURE_SIDE)
    written = BytesIO()
    Image.fromarray(pixels.transpose(1, 2, 0)).save(written, "JPEG", quality=80)
    return base64.b64encode(written.getvalue()).decode("ascii")


def _sent(facts: TaskFacts) -> int:
    return sum(r.bytes_up for r in facts.rounds)
