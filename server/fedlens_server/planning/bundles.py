"""Checks of a task's bundles against the needs of a method; errors name the manifest as the operator wrote it."""

from collections.abc import Iterator, Sequence

from fedlens_proto import slots
from fedlens_proto.manifest import objective, program, select
from fedlens_proto.v1 import assignment_pb2, manifest_pb2
from fedlens_server.planning import local_plans
from fedlens_server.planning.method import Phase, TaskPlan
from fedlens_server.planning.task_settings import Number, SettingsError, TaskSettings

CLASSIFIER = assignment_pb2.TensorSelector(roles=[manifest_pb2.TENSOR_ROLE_CLASSIFIER])
EXTRACTOR = assignment_pb2.TensorSelector(roles=[manifest_pb2.TENSOR_ROLE_EXTRACTOR])


def need_phases(task: TaskPlan, phases: Sequence[Phase]) -> None:
    """Require a bundle for each phase and a phase for each bundle.

    Raises:
        SettingsError: No bundle takes as many extractors as a phase has, or no phase has as many as a bundle takes.
    """
    method = task.settings.method
    for phase in phases:
        if not any(phase.takes(manifest) for manifest in task.manifests):
            found = f"none that concatenates {len(phase.plan.extractors)} extractors"
            raise SettingsError("manifests", found, f"one too, for phase {phase.name!r} of {method}")
    for i, manifest in enumerate(task.manifests):
        if not any(phase.takes(manifest) for phase in phases):
            found = f"a bundle that concatenates {manifest.concatenated} extractors"
            raise SettingsError(f"manifests[{i}]", found, f"one that a phase of {method} uses")


def need_equal(task: TaskPlan) -> None:
    """Require equal tensors and initial weights in all bundles, so that whole models can be averaged.

    Raises:
        SettingsError: Two bundles differ.
    """
    first = task.ordinary[0]
    for i, manifest in _ordinary(task):
        if manifest.tensors != first.tensors or manifest.initial != first.initial:
            allowed = f"bundles with equal tensors for {task.settings.method}"
            raise SettingsError(f"manifests[{i}]", "a bundle with other tensors or weights than the first", allowed)


def need_equal_classifiers(task: TaskPlan) -> None:
    """Require equal classifier tensors in all bundles; extractors may differ.

    Raises:
        SettingsError: Two classifiers differ.
    """
    first = tensors(task, CLASSIFIER)
    for i, manifest in _ordinary(task):
        if (found := select(manifest.tensors, CLASSIFIER)) != first:
            raise SettingsError(
                f"manifests[{i}]", f"a classifier of {_listed(found)}", f"one like the first bundle's, {_listed(first)}"
            )


def tensors(task: TaskPlan, selector: assignment_pb2.TensorSelector) -> list[manifest_pb2.ExchangeableTensor]:
    """The selected tensors of the task's first ordinary bundle."""
    return select(task.ordinary[0].tensors, selector)


def names(task: TaskPlan, selector: assignment_pb2.TensorSelector) -> frozenset[str]:
    """The names of the selected tensors of the task's first ordinary bundle."""
    return frozenset(tensor.name for tensor in tensors(task, selector))


def need_tensors(task: TaskPlan, selector: assignment_pb2.TensorSelector, description: str) -> None:
    """Require at least one selected tensor in each bundle.

    Raises:
        SettingsError: A bundle has none.
    """
    for i, manifest in _ordinary(task):
        if not select(manifest.tensors, selector):
            allowed = f"one with {description} for {task.settings.method}"
            raise SettingsError(f"manifests[{i}]", f"model {manifest.model!r} without {description}", allowed)


def need_objective(task: TaskPlan, objectives: Sequence[str]) -> None:
    """Require one of these objectives in each bundle.

    Raises:
        SettingsError: A bundle was exported with another one.
    """
    for i, manifest in _ordinary(task):
        if (found := objective(manifest)) not in objectives:
            needed = f"{' or '.join(objectives)} for {task.settings.method}"
            allowed = f"{needed}; export the bundle with --objective {objectives[0]}"
            raise SettingsError(f"manifests[{i}].objective", f"{found!r}", allowed)


def need_no_references(task: TaskPlan) -> None:
    """Require objectives without references, for a method that provides none.

    Raises:
        SettingsError: A bundle's objective has a reference.
    """
    for i, manifest in _ordinary(task):
        if wanted := sorted(references(manifest)):
            found = f"{objective(manifest)!r}, which wants reference {wanted[0]!r}"
            allowed = f"one without references for {task.settings.method}, such as cross_entropy"
            raise SettingsError(f"manifests[{i}].objective", found, allowed)


def need_onnx(task: TaskPlan) -> None:
    """Require ONNX programs in the first ordinary bundle, so that the server can run the model for `Tools.infer`.

    Raises:
        SettingsError: A program has no ONNX file.
    """
    first = task.ordinary[0]
    frozen = first.bundle_class == manifest_pb2.BUNDLE_CLASS_FROZEN_BACKBONE
    for name in ("embed", "predict") if frozen else ("predict",):
        if manifest_pb2.PROGRAM_FORMAT_ONNX not in {file.format for file in program(first, name).files}:
            allowed = f"one with ONNX of it for these options of {task.settings.method}; export the bundle with --onnx"
            raise SettingsError(f"manifests[{task.manifests.index(first)}]", f"program {name!r} without ONNX", allowed)


def need_hyper(task: TaskPlan, *needed: str) -> None:
    """Require these hyper-parameters in each bundle, for a method that sets them.

    Raises:
        SettingsError: A bundle lacks one.
    """
    for i, manifest in _ordinary(task):
        known = sorted(hyper.name for hyper in manifest.hyper_parameters)
        for name in needed:
            if name not in known:
                allowed = f"with {name} for {task.settings.method}"
                raise SettingsError(f"manifests[{i}].hyper_parameters", ", ".join(known) or "none", allowed)


def need_programs(task: TaskPlan, programs: Sequence[str], export: str) -> None:
    """Require these programs in each bundle; `export` are the options with which an export makes them.

    Raises:
        SettingsError: A bundle lacks one.
    """
    for i, manifest in _ordinary(task):
        known = {each.name for each in manifest.programs}
        for name in programs:
            if name not in known:
                allowed = f"one with it for {task.settings.method}; export the bundle with {export}"
                raise SettingsError(f"manifests[{i}]", f"a bundle without program {name!r}", allowed)


def candidates(task: TaskPlan) -> int:
    """The number of models that the bundles' shared programs compare; 0: there are no such programs."""
    compared = [references(each, "compare") for each in task.ordinary if "compare" in {p.name for p in each.programs}]
    if len(compared) < len(task.ordinary):
        return 0
    return min(sum(name.startswith("candidate-") for name in names) for names in compared)


def room(task: TaskPlan, option: str, wanted: int | None) -> int:
    """The number of models that an option of the method asks to compare; None: as many as the bundles do.

    Raises:
        SettingsError: The bundles compare fewer.
    """
    most = candidates(task)
    if wanted is not None and wanted > most:
        allowed = f"at most {most}, for which the bundle has room; export it with --candidates {wanted}"
        raise SettingsError(f"options.{option}", wanted, allowed)
    return wanted or most


def hyper_of(task: TaskPlan, name: str) -> dict[str, Number]:
    """The hyper-parameters that a task sets and that a program of its first ordinary bundle takes."""
    slots = program(task.ordinary[0], name).inputs
    known = {slot.name for slot in slots if slot.kind == manifest_pb2.SLOT_KIND_HYPER}
    return {name: value for name, value in task.settings.hyper.items() if name in known}


def hyper_value(settings: TaskSettings, manifest: manifest_pb2.Manifest, name: str) -> float:
    """The value of a hyper-parameter in local training: the task's, else the bundle's default, else 0."""
    defaults = {hyper.name: hyper.default_value for hyper in manifest.hyper_parameters}
    return float(settings.hyper.get(name, defaults.get(name, 0.0)))


def references(manifest: manifest_pb2.Manifest, name: str = "step") -> frozenset[str]:
    """The names of a program's references."""
    return frozenset(slots.references(program(manifest, name)))


def bind(
    manifest: manifest_pb2.Manifest, reference: str, source: assignment_pb2.Source
) -> list[assignment_pb2.Binding]:
    """The binding of a reference of `step`; empty if it has no such reference."""
    return [local_plans.bind(reference, source)] if reference in references(manifest) else []


def _ordinary(task: TaskPlan) -> Iterator[tuple[int, manifest_pb2.Manifest]]:
    """The ordinary bundles with their positions in the task."""
    return ((i, manifest) for i, manifest in enumerate(task.manifests) if not manifest.concatenated)


def _listed(tensors: Sequence[manifest_pb2.ExchangeableTensor]) -> str:
    return ", ".join(f"{tensor.name} {list(tensor.shape)}" for tensor in tensors) or "no tensors"
