"""Whether a task's options and bundles fit a method; what does not is named as the operator wrote it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedlens_proto.manifest import program, select
from fedlens_proto.v1 import assignment_pb2, manifest_pb2
from fedlens_server.planning.method import TaskPlan
from fedlens_server.planning.task_settings import SettingsError, TaskSettings

CLASSIFIER = assignment_pb2.TensorSelector(roles=[manifest_pb2.TENSOR_ROLE_CLASSIFIER])
EXTRACTOR = assignment_pb2.TensorSelector(roles=[manifest_pb2.TENSOR_ROLE_EXTRACTOR])


@dataclass(frozen=True, kw_only=True)
class Option:
    """A setting of a method's own, `options.<name>`.

    Attributes:
        allowed: What it may be, for people; as in error messages and on the page about methods.
        fits: Whether a value is allowed. A bool is an int to Python: say which is meant.
        default: The value where a task leaves it out; None there means unset.
        required: Whether a task must set it; then there is no default.
    """

    allowed: str
    fits: Callable[[Any], bool]
    default: Any = None
    required: bool = False


Options = Mapping[str, Option]


def flag(*, default: bool) -> Option:
    """True or false."""
    return Option(allowed="true or false", fits=lambda value: isinstance(value, bool), default=default)


def choice(*names: str) -> Option:
    """One of these names, by default the first."""
    allowed = ", ".join(f'"{name}"' for name in names[:-1]) + f' or "{names[-1]}"'
    return Option(allowed=allowed, fits=lambda value: value in names, default=names[0])


def whole(least: int, most: int, *, default: int | None = None, required: bool = False) -> Option:
    """A whole number."""

    def fits(value: object) -> bool:
        return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most

    return Option(allowed=f"a whole number, {least} to {most}", fits=fits, default=default, required=required)


def number(least: float, most: float, *, default: float | None = None, required: bool = False) -> Option:
    """A number, both ends allowed."""

    def fits(value: object) -> bool:
        return isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= most

    return Option(allowed=f"a number, {least:g} to {most:g}", fits=fits, default=default, required=required)


def need_options(settings: TaskSettings, options: Options) -> dict[str, Any]:
    """The value of each option, given or default.

    Raises:
        SettingsError: The method has no such option, a value is not allowed, or one that must be set is missing.
    """
    method = settings.method
    for name in sorted(settings.options.keys() - options.keys()):
        known = f"the options of {method} are {', '.join(sorted(options))}" if options else f"{method} has no options"
        raise SettingsError(f"options.{name}", "set", f"left out: {known}")
    for name, option in sorted(options.items()):
        if name not in settings.options:
            if option.required:
                raise SettingsError(f"options.{name}", "nothing", f"set for {method}: {option.allowed}")
        elif not option.fits(settings.options[name]):
            raise SettingsError(f"options.{name}", repr(settings.options[name]), option.allowed)
    return {name: settings.options.get(name, option.default) for name, option in options.items()}


def need_equal_bundles(task: TaskPlan) -> None:
    """See that all bundles have the same tensors and initial weights, so that whole models can be averaged.

    Raises:
        SettingsError: They have not.
    """
    first = task.ordinary[0]
    for i, manifest in _ordinary(task):
        if manifest.tensors != first.tensors or manifest.initial != first.initial:
            allowed = f"bundles with equal tensors for {task.settings.method}"
            raise SettingsError(f"manifests[{i}]", "a bundle with other tensors or weights than the first", allowed)


def need_equal_classifiers(task: TaskPlan) -> None:
    """See that the classifiers of all bundles have the same tensors; extractors may differ.

    Raises:
        SettingsError: They have not.
    """
    first = chosen(task, CLASSIFIER)
    for i, manifest in _ordinary(task):
        if (found := select(manifest.tensors, CLASSIFIER)) != first:
            raise SettingsError(
                f"manifests[{i}]", f"a classifier of {_listed(found)}", f"one like the first bundle's, {_listed(first)}"
            )


def chosen(task: TaskPlan, selector: assignment_pb2.TensorSelector) -> list[manifest_pb2.ExchangeableTensor]:
    """The tensors that match in the task's first ordinary bundle."""
    return select(task.ordinary[0].tensors, selector)


def need_tensors(task: TaskPlan, selector: assignment_pb2.TensorSelector, what: str) -> None:
    """See that each bundle has tensors of this kind.

    Raises:
        SettingsError: One has none.
    """
    for i, manifest in _ordinary(task):
        if not select(manifest.tensors, selector):
            allowed = f"one with {what} for {task.settings.method}"
            raise SettingsError(f"manifests[{i}]", f"model {manifest.model!r} without {what}", allowed)


def need_objective(task: TaskPlan, objectives: Sequence[str]) -> None:
    """See that each bundle was exported with one of these objectives.

    Raises:
        SettingsError: One was not.
    """
    for i, manifest in _ordinary(task):
        if manifest.objective not in objectives:
            allowed = f"one of {', '.join(objectives)} for {task.settings.method}; export the bundle so"
            raise SettingsError(f"manifests[{i}].objective", f"{manifest.objective!r}", allowed)


def need_no_references(task: TaskPlan) -> None:
    """See that no bundle's step wants tensors that the method does not give.

    Raises:
        SettingsError: One does.
    """
    for i, manifest in _ordinary(task):
        if manifest.references:
            found = f"{manifest.objective!r}, which wants reference {manifest.references[0].name!r}"
            allowed = f"one without references for {task.settings.method}, such as cross_entropy"
            raise SettingsError(f"manifests[{i}].objective", found, allowed)


def need_onnx(task: TaskPlan) -> None:
    """See that the server can run the first ordinary bundle's model, for `Tools.infer`.

    Raises:
        SettingsError: It cannot.
    """
    first = task.ordinary[0]
    frozen = first.bundle_class == manifest_pb2.BUNDLE_CLASS_FROZEN_BACKBONE
    for name in ("embed", "predict") if frozen else ("predict",):
        if manifest_pb2.PROGRAM_FORMAT_ONNX not in {file.format for file in program(first, name).files}:
            allowed = f"one with ONNX of it for these options of {task.settings.method}; export the bundle with --onnx"
            raise SettingsError(f"manifests[{task.manifests.index(first)}]", f"program {name!r} without ONNX", allowed)


def need_hyper(task: TaskPlan, *names: str) -> None:
    """See that each bundle's step has these hyper-parameters, which the method sets.

    Raises:
        SettingsError: One has not.
    """
    for i, manifest in _ordinary(task):
        known = sorted(hyper.name for hyper in manifest.hyper_parameters)
        for name in names:
            if name not in known:
                allowed = f"with {name} for {task.settings.method}"
                raise SettingsError(f"manifests[{i}].hyper_parameters", ", ".join(known) or "none", allowed)


def hyper_value(settings: TaskSettings, manifest: manifest_pb2.Manifest, name: str) -> float:
    """The value with which a bundle's step runs: the task's, else the bundle's default, else 0."""
    defaults = {hyper.name: hyper.default_value for hyper in manifest.hyper_parameters}
    return float(settings.hyper.get(name, defaults.get(name, 0.0)))


def bound(task: TaskPlan, name: str, source: assignment_pb2.SetSource) -> list[assignment_pb2.ReferenceBinding]:
    """Reference `name` bound to a set, if the step of the task's first ordinary bundle has such a reference."""
    if name not in {reference.name for reference in task.ordinary[0].references}:
        return []
    return [assignment_pb2.ReferenceBinding(name=name, set=source)]


def _ordinary(task: TaskPlan) -> Iterator[tuple[int, manifest_pb2.Manifest]]:
    """The ordinary bundles with their places in the task."""
    return ((i, manifest) for i, manifest in enumerate(task.manifests) if not manifest.concatenated)


def _listed(tensors: Sequence[manifest_pb2.ExchangeableTensor]) -> str:
    return ", ".join(f"{tensor.name} {list(tensor.shape)}" for tensor in tensors) or "no tensors"
