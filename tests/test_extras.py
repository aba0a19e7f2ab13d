"""Each extra is enough for its part: what another part needs cannot be imported, and the part still is."""

import json
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

REPOSITORY = Path(__file__).parent.parent
PARTS = {
    "": ("fedlens_proto", "fedlens.cli", "fedlens.admin_client", "fedlens_server.enrolment_link"),
    "server": ("fedlens_proto", "fedlens_server", "fedlens.cli", "fedlens.admin_client"),
    "client": ("fedlens_proto", "fedlens_edge_client", "fedlens.cli"),
    "export": ("fedlens_proto", "fedlens_export", "fedlens.cli"),
}
# Pillow, which every part that reads photos has, and torch, which every part that vets programs has.
_NEEDS_MORE = ("photos", "programs.pt2_forms", "programs.pt2_loading", "programs.pt2_values")

PROGRAM = """
import importlib, importlib.machinery, json, pkgutil, sys

hidden, roots, skipped = (set(part) for part in json.loads(sys.argv[1]))

class WithoutHidden(importlib.machinery.PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in hidden else super().find_spec(name, path, target)

sys.meta_path[:] = [WithoutHidden if f is importlib.machinery.PathFinder else f for f in sys.meta_path]
names = []
for root in roots:
    module = importlib.import_module(root)
    names.append(root)
    for found in pkgutil.walk_packages(getattr(module, "__path__", []), root + "."):
        if "migrations" not in found.name and found.name not in skipped:
            importlib.import_module(found.name)
            names.append(found.name)
print(len(names))
if sys.argv[2:]:
    sys.argv[1:] = sys.argv[2:]
    importlib.import_module("fedlens.cli").main()
"""


def distributions_of(extra: str) -> set[str]:
    """Names of all distributions that `pip install fedlens[extra]` brings here, in lower case with dashes."""
    # From pyproject.toml: what is installed editable may know of older extras.
    ours = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    waiting = [Requirement(line) for line in (*ours["dependencies"], *ours["optional-dependencies"].get(extra, []))]
    found = {"fedlens"}
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        if name not in found:
            found.add(name)
            for below in map(Requirement, requires(name) or []):
                marker = below.marker
                if marker is None or any(marker.evaluate({"extra": one}) for one in {"", *requirement.extras}):
                    waiting.append(below)
    return found


def hidden_from(extra: str) -> list[str]:
    """Top-level modules of this environment that no distribution of the extra brings."""
    kept = distributions_of(extra)
    modules = packages_distributions().items()
    return sorted(module for module, owners in modules if kept.isdisjoint(map(canonicalize_name, owners)))


@pytest.mark.parametrize(
    ("extra", "absent"),
    [
        ("", {"torch", "aiohttp", "sqlalchemy", "pillow"}),
        ("server", {"torch", "torchvision", "pillow", "onnx", "onnxscript", "plotly"}),
        ("client", {"sqlalchemy", "alembic", "trustme", "scikit-learn", "onnxruntime", "plotly"}),
        ("export", {"sqlalchemy", "aiohttp", "onnxruntime", "plotly"}),
    ],
)
def test_an_extra_brings_nothing_of_the_others(extra: str, absent: set[str]) -> None:
    assert distributions_of(extra) & absent == set()


@pytest.mark.slow
@pytest.mark.parametrize("extra", PARTS)
def test_a_part_can_be_imported_with_its_own_extra_alone(extra: str, tmp_path: Path) -> None:
    skipped = [f"fedlens_proto.{name}" for name in _NEEDS_MORE] if extra in ("", "server") else []
    told = json.dumps([hidden_from(extra), PARTS[extra], skipped])
    # A server is also made.
    more: list[str | Path] = ["serve", "--init", tmp_path / "server"] if extra == "server" else []

    done = subprocess.run([sys.executable, "-c", PROGRAM, told, *more], cwd=REPOSITORY, capture_output=True, text=True)

    assert done.returncode == 0, done.stderr
    assert int(done.stdout.splitlines()[0]) >= len(PARTS[extra])
    assert (tmp_path / "server" / "fedlens.toml").is_file() == (extra == "server")
