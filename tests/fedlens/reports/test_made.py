"""What results were made with."""

import re
from pathlib import Path

from fedlens.reports.made import made
from tests.plugin_packages import HALF, METHODS, install


def test_packages_with_plug_ins_are_among_the_versions(site: Path) -> None:
    assert "half-way" not in made()

    install(site, "half-way", METHODS, half_way=HALF)

    assert made()["half-way"] == "1.0"


def test_the_processor_has_its_instruction_set() -> None:
    assert re.fullmatch(r"\d+ x .+ \([A-Z0-9_]+\)", made()["processor"])
