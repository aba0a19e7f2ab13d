"""Rules of the repository: contents of files, and the direction of imports."""

import ast
import re
import subprocess
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
_COMMENT = re.compile(r"/\*.*?\*/|(?<!:)//[^\n]*", re.DOTALL)
MAX_FILE_BYTES = 1_000_000
MAX_MODULE_LINES = 400
MAX_CONFTEST_LINES = 150
# Absolute paths of somebody's machine, and addresses of package indexes.
PRIVATE = re.compile(
    r"/(?:home|Users|root|work)/\w|/tmp/\w|\bC:\\|index-url\s*=|(?:https?://)?\b(?:pypi|files\.pythonhosted|download\.pytorch)\.org"
)
FORBIDDEN = {
    "fedlens_proto": (
        "fedlens",
        "fedlens_server",
        "fedlens_edge_client",
        "fedlens_export",
        "torch",
        "sqlalchemy",
        "aiohttp",
    ),
    "fedlens_server": ("fedlens", "fedlens_edge_client", "fedlens_export", "torch", "torchvision", "PIL"),
    "fedlens_edge_client": ("fedlens", "fedlens_server", "fedlens_export", "sqlalchemy"),
    "fedlens_export": ("fedlens", "fedlens_server", "fedlens_edge_client", "sqlalchemy", "aiohttp"),
}


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
    return [path for path in kept_files() if path.suffix in {".kt", ".kts"}]


def imported(path: Path) -> set[str]:
    """Top-level names of everything that a module imports, also inside functions."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.partition(".")[0])
    return names


def code(path: Path) -> str:
    """A module without comments and docstrings."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        documented = isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        if documented and ast.get_docstring(node) is not None:
            node.body[:1] = [ast.Pass()]
    return ast.unparse(tree)


def test_no_file_names_a_place_on_somebodys_machine_or_a_package_index() -> None:
    found = [
        f"{path.relative_to(REPOSITORY)}: {match[0]}"
        for path in kept_files()
        if path != Path(__file__)
        for match in [PRIVATE.search(path.read_bytes().decode("utf-8", "replace"))]
        if match
    ]

    assert found == []


def test_no_file_is_larger_than_a_megabyte() -> None:
    assert [str(path) for path in kept_files() if path.stat().st_size > MAX_FILE_BYTES] == []


@pytest.mark.parametrize("package", PACKAGES)
def test_every_package_says_that_it_is_typed(package: str) -> None:
    assert (PACKAGES[package] / "py.typed").is_file()


@pytest.mark.parametrize("package", FORBIDDEN)
def test_imports_point_the_way_the_design_says(package: str) -> None:
    wrong = {
        str(path.relative_to(REPOSITORY)): bad
        for path in modules(package)
        if (bad := sorted(imported(path) & set(FORBIDDEN[package])))
    }

    assert wrong == {}


def test_nothing_of_the_client_imports_the_emulation_of_fleets() -> None:
    emulation = PACKAGES["fedlens_edge_client"] / "emulation"
    named = re.compile(r"fedlens_edge_client\.emulation|from fedlens_edge_client import [^\n]*\bemulation\b")

    assert [
        str(path.relative_to(REPOSITORY))
        for path in modules("fedlens_edge_client")
        if emulation not in path.parents and named.search(code(path))
    ] == []


@pytest.mark.parametrize("package", PACKAGES)
def test_every_module_says_what_it_holds(package: str) -> None:
    silent = [
        str(path.relative_to(REPOSITORY))
        for path in modules(package)
        if ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) in (None, "", "TODO.")
    ]

    assert silent == []


@pytest.mark.parametrize("package", PACKAGES)
def test_nothing_is_left_half_done(package: str) -> None:
    unfinished = re.compile(r"\b(TODO|FIXME|XXX)\b|raise NotImplementedError")

    assert [str(path) for path in modules(package) if unfinished.search(path.read_text(encoding="utf-8"))] == []


@pytest.mark.parametrize("package", PACKAGES)
def test_no_module_is_too_long_to_be_read_at_a_sitting(package: str) -> None:
    lengths = {
        str(p.relative_to(REPOSITORY)): len(p.read_text(encoding="utf-8").splitlines()) for p in modules(package)
    }

    assert {name: length for name, length in lengths.items() if length > MAX_MODULE_LINES} == {}


def test_no_file_of_kotlin_is_half_done_or_too_long_to_be_read_at_a_sitting() -> None:
    unfinished = re.compile(r"\b(TODO|FIXME|XXX)\b")
    texts = {str(path.relative_to(REPOSITORY)): path.read_text(encoding="utf-8") for path in kotlin()}

    assert len(texts) > 40
    assert [name for name, text in texts.items() if unfinished.search(text)] == []
    lengths = {name: len(text.splitlines()) for name, text in texts.items() if "/src/test/" not in name}
    assert {name: length for name, length in lengths.items() if length > MAX_MODULE_LINES} == {}


@pytest.mark.parametrize("conftest", sorted((REPOSITORY / "tests").rglob("conftest.py")), ids=str)
def test_shared_fixtures_stay_few(conftest: Path) -> None:
    assert len(conftest.read_text(encoding="utf-8").splitlines()) <= MAX_CONFTEST_LINES


@pytest.mark.parametrize("folder", [path for path in (REPOSITORY / "tests").rglob("*") if path.is_dir()], ids=str)
def test_every_folder_of_tests_is_a_package(folder: Path) -> None:
    assert not list(folder.glob("*.py")) or (folder / "__init__.py").is_file()


def test_methods_are_known_by_name_in_their_own_folder_alone() -> None:
    methods = PACKAGES["fedlens_server"] / "methods"
    names = sorted(METHODS)
    others = [
        path
        for package in ("fedlens_proto", "fedlens_server", "fedlens_edge_client")
        for path in modules(package)
        if methods not in path.parents
    ]

    assert "fedavg" in names
    # Citing a method's paper in a comment is fine; no code may tell one method from another.
    found = {
        str(path.relative_to(REPOSITORY)): name
        for path in others
        for text in [code(path)]
        for name in names
        if re.search(rf"\b{name}\b", text, re.IGNORECASE)
    }
    assert found == {}


def test_kotlin_knows_no_method_by_name() -> None:
    # As above, comments may cite a paper.
    names = re.compile("|".join(rf"\b{name.replace('_', '[_ -]?')}\b" for name in METHODS), re.IGNORECASE)
    found = {
        str(path.relative_to(REPOSITORY)): match[0]
        for path in kotlin()
        for match in [names.search(_COMMENT.sub("", path.read_text(encoding="utf-8")))]
        if match
    }

    assert found == {}


def test_every_package_that_is_installed_is_pinned() -> None:
    pins = (REPOSITORY / "constraints.txt").read_text(encoding="utf-8").splitlines()

    assert all(re.fullmatch(r"[\w.-]+==[\w.]+", line) for line in pins if not line.startswith("#"))
