"""Objectives and programs by name: ours, those of installed packages, and those of one's own modules."""

from collections.abc import Mapping
from typing import Protocol, TypeVar

from fedlens_export.errors import UnknownChoice, check_choice
from fedlens_proto import plugins
from fedlens_proto.errors import PluginError


class _Named(Protocol):
    @property
    def name(self) -> str:
        """As in a manifest."""
        ...


T = TypeVar("T", bound=_Named)


def chosen(kind: str, name: str, wanted: type[T], built_in: Mapping[str, T]) -> T:
    """One of ours, an entry point of an installed package in group `fedlens.<kind>s`, or `module:NAME`.

    Raises:
        UnknownChoice: There is none of that name, its package is missing or faulty, or it has the name of one of ours.
    """
    group = f"fedlens.{kind}s"
    try:
        found = plugins.find(group, name, wanted, built_in)
    except PluginError as error:
        raise UnknownChoice(f"{kind}: {error}") from error
    if found is None:
        check_choice(kind, name, plugins.names(group, built_in))
        raise AssertionError(f"{name} is known and was not found")
    if built_in.get(found.name, found) is not found:
        raise UnknownChoice(f"{kind} {name!r} has the name {found.name!r} of a built-in one; give it another name")
    return found
