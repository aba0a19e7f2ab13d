"""The alert rules in `deploy/prometheus`, by Prometheus' own tool."""

import shutil
import subprocess

import pytest

from tests.test_repository import REPOSITORY

FOLDER = REPOSITORY / "deploy" / "prometheus"


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed (Debian: prometheus)")
@pytest.mark.parametrize(
    "arguments",
    [
        ("test", "rules", "fedlens.tests.yml"),
        ("check", "rules", "--lint=all", "--lint-fatal", "fedlens.rules.yml"),
        ("check", "config", "--syntax-only", "prometheus.yml"),
    ],
)
def test_alerts_fire_for_what_is_wrong_and_for_nothing_else(arguments: tuple[str, ...]) -> None:
    done = subprocess.run(("promtool", *arguments), cwd=FOLDER, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_has_a_test_and_a_line_in_the_docs() -> None:
    alerts = _names("fedlens.rules.yml", "- alert: ")
    page = (REPOSITORY / "docs" / "observe.md").read_text(encoding="utf-8").partition("## Alerts")[2]

    assert len(alerts) > 10
    assert set(alerts) == set(_names("fedlens.tests.yml", "- alertname: "))
    assert [alert for alert in alerts if f"| `{alert}` |" not in page] == []


def _names(file: str, before: str) -> list[str]:
    lines = (FOLDER / file).read_text(encoding="utf-8").splitlines()
    return [line.strip().removeprefix(before) for line in lines if line.strip().startswith(before)]
