"""Tasks with central privacy, one for each method that can have it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedlens_proto.blob import Array, Blob
from fedlens_server.engine import phases
from fedlens_server.engine.task import TaskBundle
from fedlens_server.planning.method import Method, Phase
from fedlens_server.planning.task_settings import TaskSettings
from fedlens_server.rules.privacy import Shapes
from fedlens_server.rules.privacy_plan import shapes_of
from tests.server.bundles import TinyBundle, sealed, tiny_bundle, with_references
from tests.server.methods.tasks import changed, with_reference
from tests.server.methods.test_local_losses import CALIBRATED, RESTRICTED
from tests.server.networks import network, weights

DP = {"clip": 1.0, "noise": 1.0}
NAMES = ("conv.weight", "fc.bias", "fc.weight")


def plain_network() -> TinyBundle:
    """A convolution and a classifier, without BatchNorm."""
    bundle = tiny_bundle()
    return sealed(bundle.parsed, {name: weights(0.0)[name] for name in NAMES}, bundle.parts[1])


PLAIN = plain_network()
_RATES = [{"name": name, "default_value": 0.1, "maximum": 10.0} for name in ("lr_classifier", "lr_extractor")]
_OWN_STATISTICS = {"batch_norm": "local_statistics"}
TASKS: dict[str, tuple[TinyBundle, dict[str, Any]]] = {
    "fedavg": (PLAIN, {}),
    "fedprox": (with_reference(PLAIN, "proximal", NAMES), {}),
    "fedper": (PLAIN, {}),
    "fedrep": (changed(PLAIN, hyper_parameters=_RATES), {}),
    "fedbn": (network(), {}),
    "fedclassavg": (with_reference(PLAIN, "supcon", NAMES[1:]), {}),
    "moon": (with_references(with_reference(PLAIN, "moon", NAMES), {"previous": NAMES}), {}),
    "fedrs": (RESTRICTED, _OWN_STATISTICS),
    "fedlc": (CALIBRATED, _OWN_STATISTICS),
    "ditto": (with_reference(PLAIN, "proximal", NAMES), {}),
}


@dataclass(frozen=True)
class PrivateTask:
    """What the engine plans for a task."""

    method: Method
    phase: Phase
    shapes: Shapes
    initial: Mapping[str, Array]


def planned(name: str, bundle: TinyBundle | None = None, **settings: Any) -> PrivateTask:
    """The plan of a task with privacy for a method, with its bundle of `TASKS` unless another is given."""
    known, needed = TASKS.get(name, (PLAIN, {}))
    bundle = bundle or known
    given = {"method": name, "rounds": 3, "selection": "arrivals", "goal": 2, "dp": DP, "max_participations": 2}
    method, (phase,), _ = phases.plan(
        TaskSettings.model_validate(given | needed | settings), (TaskBundle(bundle.manifest, bundle.parsed),)
    )
    return PrivateTask(method, phase, shapes_of(phase, bundle.parsed), Blob.from_bytes(bundle.initial))
