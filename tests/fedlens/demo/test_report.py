import re
from datetime import UTC, datetime
from pathlib import Path

import pytest

from fedlens.demo.report import write_report
from fedlens.demo.results import Accuracy, TaskFacts
from fedlens.reports.tables import readable_bytes
from fedlens_proto.v1 import admin_pb2
from tests.fedlens.demo.demo_sample import IDS, NAMES, sample_answer


@pytest.fixture(scope="module")
def facts() -> TaskFacts:
    return TaskFacts.of(sample_answer(), NAMES)


@pytest.fixture(scope="module")
def html(facts: TaskFacts, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("report") / "report.html"
    write_report(
        path,
        facts,
        photos="<b>cats</b> & dogs",
        setup={"Model": "lenet5"},
        versions={"torch": "2.13.0"},
        made_at=datetime(2026, 1, 2, 3, 4, tzinfo=UTC),
    )
    assert [child.name for child in path.parent.iterdir()] == ["report.html"]
    return path.read_text(encoding="utf-8")


def test_facts_count_committed_rounds_alone(facts: TaskFacts) -> None:
    # Eleven rounds were opened; number 4 was abandoned.
    assert [r.number for r in facts.rounds] == [1, 2, 3, 5, 6, 7, 8, 9, 10, 11]
    assert facts.abandoned == ("round 4: 1 of at least 2 updates at the deadline",)


def test_facts_sum_bytes_and_photos_over_members(facts: TaskFacts) -> None:
    first, with_quarantine = facts.rounds[0], facts.rounds[4]

    assert first.bytes_up == 20 * 247_400
    assert with_quarantine.bytes_up == 19 * 247_400
    assert with_quarantine.left_out == (
        "round 6, client 4: update not used (tensor 'fc.weight' holds a NaN or an infinity)",
    )


def test_personal_results_are_pooled_over_members() -> None:
    answer = admin_pb2.ShowTaskResponse()
    result = answer.rounds.add(round=1, state=admin_pb2.ROUND_STATE_COMMITTED)
    for correct, count in ((1, 4), (3, 4)):
        member = result.members.add(client_id=bytes([correct]) * 32, state=admin_pb2.MEMBER_STATE_REPORTED)
        member.evaluations.add(label="start", count=count, correct=correct)
        member.evaluations.add(label="trained", count=count, correct=4)

    (facts,) = TaskFacts.of(answer, {}).rounds

    assert facts.before == Accuracy(correct=4, count=8)
    assert facts.after == Accuracy(correct=8, count=8)
    assert facts.model is None


def test_clients_stand_in_the_order_of_their_names(facts: TaskFacts) -> None:
    assert [client.name for client in facts.clients] == [NAMES[client] for client in IDS]
    assert {client.round_number for client in facts.clients} == {11}


def test_the_report_loads_nothing_from_anywhere(html: str) -> None:
    assert "default-src 'none'" in html
    assert not re.search(r"""<(script|link|img|iframe)[^>]*(src|href)=["'](?!data:)""", html)


def test_the_report_embeds_plotly_once_and_every_plot(html: str) -> None:
    assert html.count("plotly.js v") == 1
    for name in ("accuracy", "clients", "traffic", "time"):
        assert html.count(f'id="plot-{name}"') == 1


def test_the_report_follows_the_readers_dark_mode_with_every_colour_of_the_page(html: str) -> None:
    light, dark = (set(re.findall(r"(--[a-z]+): #", part)) for part in html.split("prefers-color-scheme: dark", 1))

    assert dark == light == {"--ink", "--muted", "--line", "--page", "--card", "--accent"}


@pytest.mark.parametrize(
    "text",
    [
        *("round 4: 1 of at least 2 updates at the deadline", "round 6, client 4: update not used"),
        *("<tr><th>Model</th><td>lenet5</td></tr>", "<tr><th>torch</th><td>2.13.0</td></tr>"),
        "&lt;b&gt;cats&lt;/b&gt; &amp; dogs",  # names of folders are no markup
    ],
)
def test_the_report_says_what_went_wrong_and_lists_settings_and_versions(html: str, text: str) -> None:
    # The page without plotly.js and the figures' data.
    assert text in re.sub(r"<script.*?</script>", "", html, flags=re.DOTALL)
    assert "<b>cats" not in html


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 bytes"), (999, "999 bytes"), (1000, "1.0 kB"), (4_948_000, "4.9 MB"), (123e6, "123 MB")]
)
def test_bytes_are_readable(count: float, text: str) -> None:
    assert readable_bytes(count) == text


def test_a_task_that_nobody_measured_still_has_a_report(tmp_path: Path) -> None:
    answer = admin_pb2.ShowTaskResponse()
    answer.rounds.add(round=1, state=admin_pb2.ROUND_STATE_COMMITTED, opened_at=1.0, ended_at=2.0)
    path = tmp_path / "report.html"

    write_report(path, TaskFacts.of(answer, {}), photos="p", setup={}, versions={}, made_at=datetime.now(UTC))

    assert "No evaluator took part" in path.read_text(encoding="utf-8")
