"""The rooms of the house: how many files each holds, how deep its imports go, and what stays private in it."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from fedlens_server.methods import METHODS
from tests.test_repository import PACKAGES, REPOSITORY, modules

MAX_FILES = 15
MAX_CHAIN = 8
# One file an entry, and nothing else.
CATALOGUES = {"fedlens_server.methods", "fedlens_export.objectives", "fedlens_export.models"}
# Rooms of one package that a room may import, beside the package's own modules.
MAY_IMPORT = {
    "fedlens_edge_client": {"client", "storage"},
    "fedlens_server.planning": set[str](),
    "fedlens_server.rules": {"planning"},
    "fedlens_server.telemetry": set[str](),
    "fedlens_server.store": {"planning", "telemetry"},
    "fedlens_server.methods": {"planning"},
    "fedlens_server.engine": {"methods", "planning", "rules", "store", "telemetry"},
    "fedlens_server.http": {"engine", "store", "telemetry"},
    "fedlens_edge_client.storage": set[str](),
    "fedlens_edge_client.engines": set[str](),
    "fedlens_edge_client.training": {"engines", "storage"},
    "fedlens_edge_client.client": {"engines", "storage", "training"},
    "fedlens_export.models": set[str](),
    "fedlens_export.objectives": set[str](),
    "fedlens_export.programs": {"objectives"},
    "fedlens.reports": set[str](),
    "fedlens.demo": {"reports"},
    "fedlens.compare": {"reports"},
}
_PRIVATE = re.compile(r"_[A-Za-z]\w*")


@cache
def files() -> dict[str, Path]:
    """The file of each module; a package is its `__init__.py`."""
    found = {}
    for package, folder in PACKAGES.items():
        for path in modules(package):
            parts = (package, *path.relative_to(folder).with_suffix("").parts)
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def room_of(module: str) -> str:
    return module if files()[module].name == "__init__.py" else module.rpartition(".")[0]


@cache
def rooms() -> dict[str, list[str]]:
    """The modules of each room, a folder, by the name of its package."""
    found: dict[str, list[str]] = {}
    for module in files():
        found.setdefault(room_of(module), []).append(module)
    return found


def imports(path: Path) -> Iterator[str]:
    """Our own modules that a file imports, also inside functions and for types."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in files())
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                if name in files() or node.module in files():
                    yield name if name in files() else node.module


def top_room(module: str) -> str:
    """The room in the package, or the package itself, to which a module belongs."""
    package, _, rest = module.partition(".")
    room = f"{package}.{rest.partition('.')[0]}"
    return room if room in rooms() else package


@pytest.mark.parametrize("room", rooms())
def test_a_room_holds_at_most_fifteen_files(room: str) -> None:
    assert room in CATALOGUES or len(rooms()[room]) <= MAX_FILES, sorted(rooms()[room])


@pytest.mark.parametrize("room", rooms())
def test_no_chain_of_imports_in_a_room_is_longer_than_eight_modules_or_a_circle(room: str) -> None:
    members = rooms()[room]
    # A package that gathers names of its room, as `__init__.py` does, stands above it.
    graph = {module: {name for name in imports(files()[module]) if name in members} - {module} for module in members}
    chains: dict[str, list[str]] = {}
    try:
        for module in TopologicalSorter(graph).static_order():
            below = max((chains[name] for name in graph[module]), key=len, default=[])
            chains[module] = [module, *below]
    except CycleError as error:
        pytest.fail(f"a circle of imports: {' -> '.join(error.args[1])}")

    assert [chain for chain in chains.values() if len(chain) > MAX_CHAIN] == []


@pytest.mark.parametrize("room", MAY_IMPORT)
def test_a_room_imports_only_the_rooms_below_it(room: str) -> None:
    package = room.partition(".")[0]
    inside = [path for module, path in files().items() if top_room(module) == room]
    used = {top_room(name) for path in inside for name in imports(path) if name.startswith(f"{package}.")}

    assert used <= {room, package, *(f"{package}.{name}" for name in MAY_IMPORT[room])}


def uses_of_private_names(path: Path, own_room: str | None) -> Iterator[str]:
    """Private names that a file imports from, or reads of, modules outside `own_room`."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    strangers: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                module = f"{node.module}.{alias.name}"
                source = module if module in files() else node.module
                if source not in files() or room_of(source) == own_room:
                    continue
                if _PRIVATE.fullmatch(alias.name):
                    yield f"{node.module}.{alias.name}"
                strangers[alias.asname or alias.name] = source
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and _PRIVATE.fullmatch(node.attr) and isinstance(node.value, ast.Name):
            if node.value.id in strangers:
                yield f"{strangers[node.value.id]}: {node.value.id}.{node.attr}"


def test_no_room_uses_a_private_name_of_another() -> None:
    found = {module: list(uses_of_private_names(path, room_of(module))) for module, path in files().items()}

    assert {module: names for module, names in found.items() if names} == {}


def test_no_test_uses_a_private_name_of_a_room_that_it_does_not_mirror() -> None:
    found = {}
    for path in (REPOSITORY / "tests").rglob("*.py"):
        folder, *inner = path.parent.relative_to(REPOSITORY / "tests").parts or ("",)
        own = ".".join((folder if folder == "fedlens" else f"fedlens_{folder}", *inner))
        found[str(path)] = list(uses_of_private_names(path, own))

    assert {path: names for path, names in found.items() if names} == {}


@pytest.mark.parametrize("room", ["engine", "rules", "store", "http"])
def test_the_server_beside_its_methods_has_no_method_of_its_own(room: str) -> None:
    names = "|".join([*METHODS, "concatenated"])
    named = re.compile(names.replace("_", "[_ -]?"), re.IGNORECASE)
    inside = {module: path for module, path in files().items() if top_room(module) == f"fedlens_server.{room}"}

    found = {module: named.findall(path.read_text(encoding="utf-8")) for module, path in inside.items()}

    assert len(inside) > 3
    assert {module: names for module, names in found.items() if names} == {}


def test_clients_of_both_languages_know_no_method_by_its_name() -> None:
    named = re.compile("|".join(METHODS).replace("_", "[_ -]?"), re.IGNORECASE)
    # Docstrings and comments may say from which paper something is.
    python = {
        module: without_docstrings(path) for module, path in files().items() if module.startswith("fedlens_edge_client")
    }
    sources = (REPOSITORY / "android_demo").rglob("src/main/**/*.kt")
    kotlin = {str(path): path.read_text(encoding="utf-8") for path in sources}

    found = {name: named.findall(code) for name, code in (python | kotlin).items()}

    assert min(len(python), len(kotlin)) > 50
    assert {name: names for name, names in found.items() if names} == {}


def without_docstrings(path: Path) -> str:
    """The code of a file, without docstrings and comments."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            node.body = [
                each for each in node.body if not (isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant))
            ]
    return ast.unparse(tree)
