"""The mean gradient of a client's local training, from its change of the weights under plain SGD.

    symbol   here                    meaning
    K        `steps_of`              local steps, which follow from the client's number of examples
    eta      `rates`                 learning rate of a tensor, by its role
    g        (w - theta) / (K eta)   mean over the steps of the gradient of a tensor, w before and theta after

With momentum the formula overrates the gradient by up to 1 / (1 - momentum).
"""

from fedlens_proto import slots
from fedlens_proto.manifest import program
from fedlens_proto.v1 import manifest_pb2
from fedlens_server.planning import bundles
from fedlens_server.planning.method import TaskPlan
from fedlens_server.planning.task_settings import Number, SettingsError, TaskSettings

OPTIMISER = "sgd"
_RATES = {
    manifest_pb2.TENSOR_ROLE_CLASSIFIER: "lr_classifier",
    manifest_pb2.TENSOR_ROLE_EXTRACTOR: "lr_extractor",
}


def need_plain_sgd(task: TaskPlan) -> None:
    """Require that all bundles train alike, by SGD: the server computes with the batch and rates of the first.

    Raises:
        SettingsError: A bundle has another optimiser, or another batch or other hyper-parameters than the first.
    """
    first, batch = task.ordinary[0], batch_of(task)
    for i, manifest in enumerate(task.manifests):
        if manifest.concatenated:
            continue
        step = program(manifest, "step")
        if step.optimiser != OPTIMISER:
            allowed = f"{OPTIMISER!r} for {task.settings.method}; export the bundle with --optimiser {OPTIMISER}"
            raise SettingsError(f"manifests[{i}].optimiser", f"{step.optimiser!r}", allowed)
        allowed = f"the first bundle's for {task.settings.method}"
        if (found := slots.batch_of(step)) != batch:
            raise SettingsError(f"manifests[{i}].batch", found, f"{batch}, {allowed}")
        if manifest.hyper_parameters != first.hyper_parameters:
            raise SettingsError(f"manifests[{i}].hyper_parameters", "other names, defaults or ranges", allowed)


def without_momentum(task: TaskPlan) -> dict[str, Number]:
    """The task's hyper-parameters of `step`, with momentum 0.

    Raises:
        SettingsError: The task sets another momentum.
    """
    given = bundles.hyper_of(task, "step")
    if given.get("momentum"):
        allowed = f"0 for {task.settings.method}, which divides by the learning rate"
        raise SettingsError("hyper.momentum", given["momentum"], allowed)
    known = {hyper.name for hyper in task.ordinary[0].hyper_parameters}
    return {**given, "momentum": 0.0} if "momentum" in known else given


def steps_of(settings: TaskSettings, num_examples: int, batch: int) -> int:
    """The local steps of a client with photos: the task's, or those of its epochs."""
    if settings.steps is not None:
        return settings.steps
    return (settings.epochs or 1) * -(-num_examples // batch)


def batch_of(task: TaskPlan) -> int:
    """The batch of program `step` of the first ordinary bundle."""
    return slots.batch_of(program(task.ordinary[0], "step"))


def rates(task: TaskPlan, names: list[str]) -> dict[str, float]:
    """The learning rate of each of these tensors.

    Raises:
        SettingsError: One is 0, so that its tensors do not move.
    """
    manifest, settings = task.ordinary[0], task.settings
    found = {}
    for tensor in (each for each in manifest.tensors if each.name in names):
        key = _RATES[tensor.role]
        found[tensor.name] = bundles.hyper_value(settings, manifest, key)
        if found[tensor.name] <= 0:
            raise SettingsError(f"hyper.{key}", found[tensor.name], f"above 0 for {settings.method}")
    return found
