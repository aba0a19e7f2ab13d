"""Each extra is enough for its part: what another part needs cannot be imported, and the part still is."""

import json
import re
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parent.parent
PARTS = {
    "": ("fedlens_proto", "fedlens.cli", "fedlens.admin_client", "fedlens.enrolment_link"),
    "server": ("fedlens_proto", "fedlens_server", "fedlens.cli", "fedlens.admin_client"),
    "client": ("fedlens_proto", "fedlens_edge_client", "fedlens.cli"),
    "export": ("fedlens_proto", "fedlens_export", "fedlens.cli"),
}
_NEEDS_MORE = ("fedlens_proto.photos",)  # Pillow, which every part that reads photos has

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
"""


def distributions_of(extra: str) -> set[str]:
    """Names of all distributions that `pip install fedlens[extra]` brings, in lower case with dashes."""
    found: set[str] = set()
    # From pyproject.toml: what is installed editable may know of older extras.
    ours = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    waiting = [("fedlens", frozenset({extra}))]
    while waiting:
        name, extras = waiting.pop()
        if name == "fedlens":
            lines = [*ours["dependencies"], *ours["optional-dependencies"].get(extra, [])]
        else:
            lines = requirements(name)
        for line in lines:
            requirement, _, marker = line.partition(";")
            wanted = re.search(r"extra == ['\"]([\w-]+)['\"]", marker)
            parts = re.match(r"([\w.-]+)(?:\[([\w,-]+)\])?", requirement.strip())
            assert parts is not None
            dependency = re.sub(r"[-_.]+", "-", parts[1]).lower()
            if (wanted is None or wanted[1] in extras) and dependency not in found | {"fedlens"}:
                found.add(dependency)
                waiting.append((dependency, frozenset((parts[2] or "").split(","))))
    return found


def requirements(distribution: str) -> list[str]:
    """Of an installed distribution; nothing for one that only other platforms have."""
    try:
        return requires(distribution) or []
    except PackageNotFoundError:
        return []


def hidden_from(extra: str) -> list[str]:
    """Top-level modules of this environment that no distribution of the extra brings."""
    kept = distributions_of(extra) | {"fedlens"}
    return sorted(
        module
        for module, owners in packages_distributions().items()
        if not {re.sub(r"[-_.]+", "-", owner).lower() for owner in owners} & kept
    )


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


@pytest.mark.parametrize("extra", PARTS)
def test_a_part_can_be_imported_with_its_own_extra_alone(extra: str) -> None:
    skipped = _NEEDS_MORE if extra in ("", "server") else ()
    told = json.dumps([hidden_from(extra), PARTS[extra], skipped])

    done = subprocess.run([sys.executable, "-c", PROGRAM, told], cwd=REPOSITORY, capture_output=True, text=True)

    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= len(PARTS[extra])


def test_a_server_is_made_with_the_servers_extra_alone(tmp_path: Path) -> None:
    program = PROGRAM.replace("print(len(names))", "from fedlens.cli import main\nsys.argv[1:] = sys.argv[2:]\nmain()")
    told = json.dumps([hidden_from("server"), ["fedlens.cli"], _NEEDS_MORE])

    done = subprocess.run(
        [sys.executable, "-c", program, told, "serve", "--init", tmp_path / "server"], capture_output=True, text=True
    )

    assert done.returncode == 0, done.stderr
    assert (tmp_path / "server" / "fedlens.toml").is_file()
