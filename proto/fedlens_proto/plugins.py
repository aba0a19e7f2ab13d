"""Plug-ins: objects of other packages, named by an installed package's entry point or as `module:NAME`.

Finding one imports its module, and so runs the code of its package.
"""

import importlib
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import TypeVar

from fedlens_proto.errors import PluginError

T = TypeVar("T")
# Folders of code that calls plug-ins, or that they call.
_OTHERS = frozenset(("torch", *(f"fedlens_{name}" for name in ("edge_client", "export", "proto", "server"))))


@cache
def installed(group: str) -> tuple[EntryPoint, ...]:
    """The entry points of a group; packages installed later count from the next start of the process."""
    return tuple(entry_points(group=group))


def names(group: str, built_in: Mapping[str, object]) -> list[str]:
    """The built-in names, then those of installed packages."""
    return list(dict.fromkeys([*built_in, *sorted(entry.name for entry in installed(group))]))


def is_module(name: str) -> bool:
    """Tell whether a name is of the form `module:NAME`."""
    return ":" in name


def find(group: str, name: str, kind: type[T], built_in: Mapping[str, T]) -> T | None:
    """The object of this name; None: there is no such name.

    Args:
        group: Of the entry points, such as `fedlens.methods`.
        name: A built-in name, an entry point's name, or `module:NAME`, whose module may be in the current folder.
        kind: The class of the object.
        built_in: Objects by name, which need no plug-in.

    Raises:
        PluginError: Two packages or a package and FedLens have the name, the module cannot be imported, or it has no
            object of this name and class.
    """
    entries = [entry for entry in installed(group) if entry.name == name]
    owners = [*(["FedLens"] if name in built_in else []), *sorted(map(_package, entries))]
    if entries and len(owners) > 1:
        raise PluginError(
            f"found {name!r} in {' and in '.join(owners)}; uninstall one of the packages, or rename its entry point in "
            f"group {group}"
        )
    if entries:
        what = f"entry point {name!r} of {owners[0]}, {entries[0].value},"
        return _attribute(what, _imported(what, entries[0].value), entries[0].value, kind)
    if name in built_in or not is_module(name):
        return built_in.get(name)
    with current_folder_on_path():
        return _attribute(repr(name), _imported(repr(name), name), name, kind)


def _package(entry: EntryPoint) -> str:
    return f"package {entry.dist.name}" if entry.dist else "a package without a name"


@contextmanager
def current_folder_on_path() -> Iterator[None]:
    """Let imports find modules in the current folder first."""
    before = list(sys.path)
    sys.path.insert(0, str(Path.cwd()))
    try:
        yield
    finally:
        sys.path[:] = before


def _imported(what: str, value: str) -> ModuleType:
    module = value.partition(":")[0].strip()
    try:
        return importlib.import_module(module)
    except Exception as error:  # whatever a foreign module raises
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is not None and f"{module}.".startswith(f"{missing}."):
            raise PluginError(
                f"{what} cannot be imported: there is no module {missing!r}; install its package, or run where "
                "its file is"
            ) from error
        raise PluginError(f"{what} cannot be imported: {told(error)}") from error


def told(error: Exception) -> str:
    """An error from a plug-in's code in words, with the place in that code that it came from."""
    own = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_foreign(Path(frame.filename))]
    place = f" ({Path(own[-1].filename).name}, line {own[-1].lineno})" if own else ""
    return f"{type(error).__name__}: {error}{place}"


def _is_foreign(file: Path) -> bool:
    return not (
        _OTHERS & set(file.parts) or file.name.startswith("<") or file.parent == Path(importlib.__file__).parent
    )


def _attribute(what: str, module: ModuleType, value: str, kind: type[T]) -> T:
    name = value.partition(":")[2].strip()
    found = getattr(module, name, None)
    if isinstance(found, kind):
        return found
    has = f"has a {type(found).__name__} {name!r}" if hasattr(module, name) else f"has no {name!r}"
    own = [key for key, value in vars(module).items() if isinstance(value, kind)]
    raise PluginError(
        f"{what} is no {kind.__name__}: the module {has}; its objects of that class are {', '.join(own) or 'none'}"
    )
