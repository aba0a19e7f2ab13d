"""The options of a method: `options.<name>` in a task's settings."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from fedlens_server.planning.task_settings import SettingsError, TaskSettings


@dataclass(frozen=True, kw_only=True)
class Option:
    """One option.

    Attributes:
        allowed: The allowed values in words, for error messages and the page about methods.
        accepts: Test of a value. A bool is an int to Python.
        default: The value of an option that a task leaves out; None there means unset.
    """

    allowed: str
    accepts: Callable[[Any], bool]
    default: Any = None

    def __post_init__(self) -> None:
        """Require that the default is allowed."""
        if self.default is not None and not self.accepts(self.default):
            raise ValueError(f"default {self.default!r} of an option must be {self.allowed}")


Options = Mapping[str, Option]


def flag(*, default: bool) -> Option:
    """True or false."""
    return Option(allowed="true or false", accepts=lambda value: isinstance(value, bool), default=default)


def choice(*names: str) -> Option:
    """One of these names; the first is the default."""
    allowed = ", ".join(f'"{name}"' for name in names[:-1]) + f' or "{names[-1]}"'
    return Option(allowed=allowed, accepts=lambda value: value in names, default=names[0])


def is_number(value: object, least: float, most: float) -> bool:
    """Tell whether a value is a number within bounds, and no bool."""
    return isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= most


def whole(least: int, most: int, *, default: int | None = None) -> Option:
    """A whole number."""

    def accepts(value: object) -> bool:
        return isinstance(value, int) and is_number(value, least, most)

    return Option(allowed=f"a whole number, {least} to {most}", accepts=accepts, default=default)


def number(least: float, most: float, *, default: float | None = None) -> Option:
    """A number; both bounds are allowed."""
    allowed = f"a number, {least:g} to {most:g}"
    return Option(allowed=allowed, accepts=lambda value: is_number(value, least, most), default=default)


def need_default(chosen: Mapping[str, Any], options: Options, names: Iterable[str], since: str) -> None:
    """Require of options that have no effect here that a task leaves them out.

    Raises:
        SettingsError: One is set to something else than its default; `since` says why it has no effect.
    """
    for name in names:
        if chosen[name] != options[name].default:
            raise SettingsError(f"options.{name}", repr(chosen[name]), f"left out, since {since}")


def read(settings: TaskSettings, options: Options) -> dict[str, Any]:
    """The value of each option, set or default.

    Raises:
        SettingsError: The method has no such option, or a value is not allowed.
    """
    method = settings.method
    for name in sorted(settings.options.keys() - options.keys()):
        known = f"the options of {method} are {', '.join(sorted(options))}" if options else f"{method} has no options"
        raise SettingsError(f"options.{name}", "set", f"left out: {known}")
    for name, option in sorted(options.items()):
        if name in settings.options and not option.accepts(settings.options[name]):
            raise SettingsError(f"options.{name}", repr(settings.options[name]), option.allowed)
    return {name: settings.options.get(name, option.default) for name, option in options.items()}
