"""Rules of the repository: contents of files, and the direction of imports."""

import ast
import re
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from fedlens_server.methods import METHODS

REPOSITORY = Path(__file__).parent.parent
PACKAGES = {
    "fedlens": REPOSITORY / "fedlens",
    "fedlens_proto": REPOSITORY / "proto" / "fedlens_proto",
    "fedlens_server": REPOSITORY / "server" / "fedlens_server",
    "fedlens_edge_client": REPOSITORY / "edge_client" / "fedlens_edge_client",
    "fedlens_export": REPOSITORY / "export" / "fedlens_export",
}
MAX_FILE_BYTES = 1_000_000
MAX_MODULE_LINES = 400
MAX_CONFTEST_LINES = 150
# Absolute paths of somebody's machine, and addresses of package indexes.
PRIVATE = re.compile(
    r"/(?:home|Users|root|work)/\w|/tmp/\w|\bC:\\|index-url\s*=|(?:https?://)?\b(?:pypi|files\.pythonhosted|download\.pytorch)\.org"
)
# Libraries that a package must do without; `fedlens` may import everything.
FORBIDDEN = {
    "fedlens_proto": {"torch", "sqlalchemy", "aiohttp"},
    "fedlens_server": {"torch", "torchvision", "PIL"},
    "fedlens_edge_client": {"sqlalchemy"},
    "fedlens_export": {"sqlalchemy", "aiohttp"},
}
# Client and exporter vet programs alike; nothing imports it where torch is missing.
NEEDS_TORCH = tuple(f"proto/fedlens_proto/programs/{name}.py" for name in ("pt2_forms", "pt2_loading"))
_COMMENT = re.compile(r"/\*.*?\*/|(?<!:)//[^\n]*", re.DOTALL)
_UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX)\b|raise NotImplementedError")
_METHOD = re.compile("|".join(rf"\b{name.replace('_', '[_ -]?')}\b" for name in METHODS), re.IGNORECASE)


def kept_files() -> list[Path]:
    """Files that git tracks, and new ones that it does not ignore."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=REPOSITORY,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    paths = [REPOSITORY / name for name in listed.split("\0") if name]
    return [path for path in paths if path.is_file()]


def modules(package: str) -> list[Path]:
    """Modules that people write."""
    folder = PACKAGES[package]
    return [path for path in sorted(folder.rglob("*.py")) if not path.name.endswith("_pb2.py")]


def kotlin() -> list[Path]:
    """Kotlin that people write, with Gradle's scripts."""
    found = [path for path in kept_files() if path.suffix in {".kt", ".kts"}]
    assert len(found) > 40
    return found


MODULES = [path for package in PACKAGES for path in modules(package)]


def faults(paths: Iterable[Path], fault: Callable[[str], object]) -> dict[str, object]:
    """The faults in the texts of files, by file; nothing for a file without any."""
    texts = {str(path.relative_to(REPOSITORY)): path.read_text(encoding="utf-8", errors="replace") for path in paths}
    return {name: found for name, text in texts.items() if (found := fault(text))}


def longer_than(lines: int) -> Callable[[str], object]:
    return lambda text: len(text.splitlines()) > lines


def imported(text: str) -> set[str]:
    """Top-level names of everything that a module imports, also inside functions."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.partition(".")[0])
    return names


def code(text: str) -> str:
    """A module without comments and docstrings."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        documented = isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        if documented and ast.get_docstring(node) is not None:
            node.body[:1] = [ast.Pass()]
    return ast.unparse(tree)


def test_no_file_names_a_place_on_somebodys_machine_or_a_package_index() -> None:
    assert faults([path for path in kept_files() if path != Path(__file__)], PRIVATE.search) == {}


def test_no_file_is_larger_than_a_megabyte() -> None:
    assert [str(path) for path in kept_files() if path.stat().st_size > MAX_FILE_BYTES] == []


def test_every_package_says_that_it_is_typed() -> None:
    assert [package for package, folder in PACKAGES.items() if not (folder / "py.typed").is_file()] == []


@pytest.mark.parametrize("package", FORBIDDEN)
def test_imports_point_the_way_the_design_says(package: str) -> None:
    others = PACKAGES.keys() - {package, "fedlens_proto"}

    found = faults(modules(package), lambda text: imported(text) & (others | FORBIDDEN[package]))
    assert found == ({path: {"torch"} for path in NEEDS_TORCH} if package == "fedlens_proto" else {})


def test_nothing_is_left_half_done() -> None:
    assert faults([*MODULES, *kotlin()], _UNFINISHED.search) == {}


def test_no_module_is_too_long_to_be_read_at_a_sitting() -> None:
    written = [path for path in kotlin() if "src/test" not in path.as_posix()]

    assert faults([*MODULES, *written], longer_than(MAX_MODULE_LINES)) == {}


def test_shared_fixtures_stay_few() -> None:
    assert faults((REPOSITORY / "tests").rglob("conftest.py"), longer_than(MAX_CONFTEST_LINES)) == {}


def test_every_folder_of_tests_is_a_package() -> None:
    folders = {path.parent for path in (REPOSITORY / "tests").rglob("*.py")}

    assert [str(folder) for folder in folders if not (folder / "__init__.py").is_file()] == []


def test_methods_are_known_by_name_in_their_own_folder_alone() -> None:
    methods = PACKAGES["fedlens_server"] / "methods"
    packages = ("fedlens_proto", "fedlens_server", "fedlens_edge_client")
    others = [path for package in packages for path in modules(package) if methods not in path.parents]

    assert "fedavg" in METHODS
    # Citing a method's paper in a comment is fine; no code may tell one method from another.
    assert faults(others, lambda text: _METHOD.search(code(text))) == {}
    assert faults(kotlin(), lambda text: _METHOD.search(_COMMENT.sub("", text))) == {}


def test_every_package_that_is_installed_is_pinned() -> None:
    pins = (REPOSITORY / "constraints.txt").read_text(encoding="utf-8").splitlines()

    assert all(re.fullmatch(r"[\w.-]+==[\w.]+", line) for line in pins if not line.startswith("#"))
