"""Tasks as methods see them, made without a server."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fedlens_proto.v1 import manifest_pb2
from fedlens_server.methods import METHODS
from fedlens_server.planning.local_plans import WEIGHTS
from fedlens_server.planning.method import Method, State, TaskPlan, TensorSet, Tools, Update
from fedlens_server.planning.options import read
from fedlens_server.planning.task_settings import TaskSettings
from tests.server.bundles import TinyBundle, refit, with_references
from tests.server.fakes import ALICE, BOB, CAROL
from tests.server.networks import network, weights

ALL = sorted(weights(0.0))
EXTRACTOR, CLASSIFIER = ALL[:4], ALL[4:]


def made(method: str, *bundles: TinyBundle, **settings: Any) -> Method:
    """The method for a task of three rounds; by default with the tiny network."""
    clients = {} if "selection" in settings else {"population": 3}
    given = TaskSettings.model_validate({"method": method, "rounds": 3, **clients, **settings})
    definition = METHODS[method]
    manifests = tuple(bundle.parsed for bundle in bundles or [network()])
    return definition.for_task(TaskPlan(settings=given, manifests=manifests, options=read(given, definition.options)))


def changed(bundle: TinyBundle, **fields: Any) -> TinyBundle:
    """The bundle with other fields in its manifest."""
    manifest = bundle.parsed
    for name in fields:
        manifest.ClearField(name)
    manifest.MergeFrom(manifest_pb2.Manifest(**fields))
    refit(manifest)
    return TinyBundle(manifest.SerializeToString(deterministic=True), bundle.parts, bundle.initial)


def with_reference(bundle: TinyBundle, objective: str, tensors: Sequence[str], mu: float = 0.1) -> TinyBundle:
    """The bundle with an objective whose step has the reference `global` of these tensors, and mu."""
    manifest = bundle.parsed
    (step,) = (program for program in manifest.programs if program.name == "step")
    step.objective = objective
    with_mu = changed(
        TinyBundle(manifest.SerializeToString(), bundle.parts, bundle.initial),
        hyper_parameters=[
            manifest_pb2.HyperParameter(name="lr_classifier", default_value=0.1, maximum=10.0),
            manifest_pb2.HyperParameter(name="mu", default_value=mu, maximum=1000.0),
        ],
    )
    return with_references(with_mu, {"global": tensors})


PROXIMAL = with_reference(network(), "proximal", ALL)
SUPCON = with_reference(network(), "supcon", CLASSIFIER)


def begun(method: Method, initial: float = 0.0) -> State:
    """The state at the start of the first phase, all weights `initial`."""
    return method.begin(method.phases[0], State(), tools(initial))


def tools(initial: float = 0.0, **changed: Any) -> Tools:
    """All initial weights `initial`."""
    given = {"generator": np.random.default_rng(0), "population": (ALICE, BOB, CAROL), "initial": weights(initial)}
    return Tools(**{**given, **changed})


def update(client: bytes, tensors: TensorSet | None = None, photos: int = 1, **statistics: Any) -> Update:
    """A client's upload."""
    values = {} if tensors is None else {WEIGHTS: tensors}
    return Update(client=client, num_examples=photos, values=values, **statistics)


def uploads(sent: Mapping[bytes, TensorSet]) -> list[Update]:
    """The upload of each client."""
    return [update(client, tensors) for client, tensors in sent.items()]


def after(method: Method, state: State, updates: Sequence[Update], phase: int = 0, **given: Any) -> State:
    """The state after a round, in which clients were sent what `download` gives; `given` are tools."""
    now = method.phases[phase]
    updates = [replace(each, sent=method.download(now, state, each.client) or {}) for each in updates]
    return method.aggregate(now, state, updates, tools(**given))
