"""Tasks as methods see them, made without a server."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fedlens_proto import blob
from fedlens_proto.v1 import manifest_pb2
from fedlens_server.methods import METHODS, Method, State, TaskPlan, TensorSet, Tools, Update
from fedlens_server.planning.task_settings import TaskSettings
from tests.server.bundles import TinyBundle
from tests.server.fakes import client_ids
from tests.server.networks import network, weights

ALICE, BOB, CAROL = client_ids(3)


def plan(method: str, *bundles: TinyBundle, **settings: Any) -> TaskPlan:
    """A task of three rounds; by default with the tiny network."""
    manifests = [manifest_pb2.Manifest.FromString(bundle.manifest) for bundle in bundles or [network()]]
    return TaskPlan(
        settings=TaskSettings(**{"method": method, "rounds": 3, "population": 3, **settings}),
        manifests=tuple(manifests),
    )


def changed(bundle: TinyBundle, **fields: Any) -> TinyBundle:
    """The bundle with other fields in its manifest."""
    manifest = manifest_pb2.Manifest.FromString(bundle.manifest)
    for name, value in fields.items():
        if isinstance(value, list):
            del getattr(manifest, name)[:]
            getattr(manifest, name).extend(value)
        else:
            setattr(manifest, name, value)
    return TinyBundle(manifest.SerializeToString(deterministic=True), bundle.parts, bundle.initial)


def with_reference(bundle: TinyBundle, objective: str, tensors: Sequence[str], mu: float = 0.1) -> TinyBundle:
    """The bundle with an objective whose step has the reference `global` of these tensors, and mu."""
    return changed(
        bundle,
        objective=objective,
        references=[manifest_pb2.Reference(name="global", tensors=tensors)],
        hyper_parameters=[
            manifest_pb2.HyperParameter(name="lr_classifier", default_value=0.1, maximum=10.0),
            manifest_pb2.HyperParameter(name="mu", default_value=mu, maximum=1000.0),
        ],
    )


def made(task: TaskPlan) -> Method:
    """Its method."""
    return METHODS[task.settings.method](task)


def begun(method: Method, task: TaskPlan, initial: float = 0.0) -> State:
    """The state with which the first phase starts, all weights `initial`."""
    return method.begin(method.phases(task)[0], {}, tools(initial))


def tools(initial: float = 0.0) -> Tools:
    """All initial weights alike."""
    return Tools(generator=np.random.default_rng(0), population=(ALICE, BOB, CAROL), initial=weights(initial))


def update(
    client: bytes, tensors: Mapping[str, blob.Array], photos: int = 1, class_counts: tuple[int, ...] | None = None
) -> Update:
    """What a client sends."""
    return Update(client=client, num_examples=photos, tensors=tensors, class_counts=class_counts)


def after(method: Method, task: TaskPlan, state: State, updates: Sequence[Update]) -> State:
    """The state after a round of the first phase; what `download` gives was sent as it is where updates say nothing."""
    phase = method.phases(task)[0]

    def sent(client: bytes) -> Mapping[str, TensorSet]:
        return method.download(phase, state, client) or {}

    updates = [each if each.sent else replace(each, sent=sent(each.client)) for each in updates]
    return method.aggregate(phase, state, updates, tools())
