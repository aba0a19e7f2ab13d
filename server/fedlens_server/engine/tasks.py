"""Making a task: everything that can be wrong with it is found here, before a client sees it."""

import os
from collections.abc import Sequence
from dataclasses import replace
from hashlib import sha256

from sqlalchemy import insert

from fedlens_proto import manifest as manifests
from fedlens_proto.blob import Blob
from fedlens_proto.errors import ProtoError
from fedlens_proto.manifest import specs
from fedlens_proto.v1 import admin_pb2
from fedlens_server.engine import client_statistics, lifecycle, local_plans, results
from fedlens_server.engine.view import Federation, Task, TaskBundle
from fedlens_server.errors import Malformed, TaskDiffers
from fedlens_server.methods import METHODS, Method, Phase, TaskPlan
from fedlens_server.planning import task_settings
from fedlens_server.planning.task_settings import SettingsError, TaskSettings
from fedlens_server.store import Transaction, schema

MAX_NAME = 100
MAX_BUNDLES = 16
PERSONAL_EVALUATION = "personal-evaluation"


def create(federation: Federation, transaction: Transaction, request: admin_pb2.CreateTaskRequest) -> admin_pb2.Task:
    """See `Rounds.create_task`."""
    content = _content(request)
    name = request.name
    if not name or len(name) > MAX_NAME or not name.isprintable() or name != name.strip() or name.isdecimal():
        raise Malformed(f"name: found {name[:MAX_NAME]!r}, must be 1 to {MAX_NAME} printable characters, not a number")
    for task in federation.tasks.values():
        if task.name == name:
            if task.content == content:
                return results.summary(task)
            raise TaskDiffers(f"there is a task {name!r} with other bundles or settings; choose another name")
    settings = task_settings.parse(request.settings_json)
    bundles = _bundles(federation, request)
    method, phases, method_phases = plan(settings, bundles)
    seed = bytes.fromhex(settings.seed) if settings.seed is not None else os.urandom(32)
    row = {"name": name, "content": content, "settings": settings.public_json(), "seed": seed, "reason": ""}
    number = transaction.execute(
        insert(schema.tasks),
        {**row, "state": admin_pb2.TASK_STATE_WAITING, "committed": 0, "abandoned": 0},
    ).lastrowid
    transaction.execute(
        insert(schema.task_bundles),
        [{"task": number, "position": i, "manifest": bundle.raw} for i, bundle in enumerate(bundles)],
    )
    task = Task(
        id=number,
        name=name,
        content=content,
        settings=settings.model_copy(update={"seed": None}),
        seed=seed,
        bundles=bundles,
        method=method,
        phases=phases,
        method_phases=method_phases,
        state=admin_pb2.TASK_STATE_WAITING,
    )
    for client in federation.clients.values():
        federation.note_eligible(task, client)

    def follow() -> None:
        federation.tasks[number] = task
        federation.changed([number])
        lifecycle.start_ready(federation)

    transaction.after_commit(follow)
    return results.summary(task)


def plan(settings: TaskSettings, bundles: tuple[TaskBundle, ...]) -> tuple[Method, tuple[Phase, ...], int]:
    """The method, all phases, and how many of them are the method's own.

    Raises:
        Malformed: The method does not exist, or its local plans do not fit the bundles.
    """
    make = METHODS.get(settings.method)
    if make is None:
        raise SettingsError("method", f"{settings.method[:80]!r}", f"one of {', '.join(sorted(METHODS))}")
    if all(bundle.manifest.concatenated for bundle in bundles):
        raise SettingsError("manifests", "only bundles that concatenate extractors", "an ordinary one at least")
    for bundle in bundles:
        if not bundle.manifest.concatenated:
            task_settings.check_hyper_values(settings, bundle.manifest)
    task = TaskPlan(settings=settings, manifests=tuple(bundle.manifest for bundle in bundles))
    method = make(task)
    phases = method.phases(task)
    for phase in phases:
        fitting = [bundle for bundle in bundles if bool(bundle.manifest.concatenated) == phase.concatenated]
        if not fitting:
            allowed = f"one that concatenates extractors too, for phase {phase.name!r} of {settings.method}"
            raise SettingsError("manifests", "only ordinary bundles", allowed)
        for bundle in fitting:
            local_plans.check(phase.local_plan, bundle.manifest, phase.name)
    if task.concatenated and not any(phase.concatenated for phase in phases):
        allowed = f"ordinary bundles: {settings.method} concatenates no extractors"
        raise SettingsError("manifests", "one that concatenates extractors", allowed)
    count = len(phases)
    if settings.personal_evaluation:
        last = phases[-1]
        local_plan = local_plans.evaluation_only(last.local_plan, with_kept=True)
        assert local_plan is not None  # kept sets may be used
        phases.append(replace(last, name=PERSONAL_EVALUATION, rounds=1, cohort=None, local_plan=local_plan))
    classes = len(bundles[0].manifest.class_names)
    return method, tuple(client_statistics.settle(settings, phases, classes)), count


def _content(request: admin_pb2.CreateTaskRequest) -> bytes:
    hashed = sha256(b"fedlens/task/v1")
    for piece in (request.name.encode(), request.settings_json.encode(), *request.manifests):
        hashed.update(len(piece).to_bytes(8, "little") + piece)
    return hashed.digest()


def _bundles(federation: Federation, request: admin_pb2.CreateTaskRequest) -> tuple[TaskBundle, ...]:
    if not 1 <= len(request.manifests) <= MAX_BUNDLES:
        raise Malformed(f"manifests: found {len(request.manifests)}, must be 1 to {MAX_BUNDLES}")
    bundles: list[TaskBundle] = []
    for i, raw in enumerate(request.manifests):
        try:
            bundle = TaskBundle(raw, manifests.parse(raw))
            _check_parts(federation, bundle)
        except ProtoError as error:
            raise Malformed(f"manifests[{i}]: {error}") from error
        first, found = (each.manifest.class_names for each in (bundles[0] if bundles else bundle, bundle))
        if found != first:
            raise Malformed(
                f"manifests[{i}]: its class names differ from those of the first bundle: found {_few(found)}, must be "
                f"{_few(first)}; export all bundles of a task with the same classes"
            )
        bundles.append(bundle)
    return tuple(bundles)


def _few(names: Sequence[str]) -> str:
    shown = ", ".join(name[:40] for name in names[:5])
    return shown if len(names) <= 5 else f"{shown} ... ({len(names)})"


def _check_parts(federation: Federation, bundle: TaskBundle) -> None:
    blobs = federation.store.blobs
    for part in bundle.manifest.parts:
        size = blobs.sizes.get(part.sha256)
        if size is None:
            raise Malformed(f"part {part.sha256.hex()} is not stored; put the bundle's parts first")
        if size != part.size:
            raise Malformed(f"part {part.sha256.hex()} has {size} bytes, the manifest says {part.size}")
    location = blobs.locate(bundle.manifest.initial)
    initial = Blob.from_bytes(location.raw) if location.raw is not None else None
    if initial is None:
        assert location.path is not None
        initial = Blob.open(location.path, bundle.manifest.initial)
    wanted = sorted(specs(bundle.manifest.tensors), key=lambda spec: spec.name.encode())
    if list(initial.layout.specs) != wanted:
        raise Malformed("the initial blob does not hold the bundle's exchangeable tensors")
