"""A run at a node: the generator that Ray calls there."""

import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from queue import SimpleQueue
from time import perf_counter

from fedlens.compare import run_state
from fedlens.compare.on_ray.cluster import the_ray
from fedlens.compare.on_ray.helping import Helping, check_versions
from fedlens.compare.on_ray.luggage import PHOTOS, Luggage, at_node
from fedlens.compare.plan import RunPlan
from fedlens.compare.work import carry_out
from fedlens.jobs import JobEnded, JobProgress, failure_text
from fedlens_edge_client.emulation.fleet.config import MADE_PHOTOS
from fedlens_edge_client.engines.memory import keep_freed_memory

# Telling a run's state takes at most this part of its time.
_TELLING = 0.03

Message = JobProgress | JobEnded | bytes


def carried_out(
    luggage: Luggage, plan: RunPlan, state: bytes, device: str, versions: Mapping[str, str], helping: Helping | None
) -> Iterator[Message]:
    """Carry out a run, and yield its progress, `run_state.Changes` of its folder, and its end.

    Args:
        luggage: What it needs.
        plan: The run, without photos.
        state: The state with which it begins.
        device: Torch's name of the device that runs programs.
        versions: Those that the command has.
        helping: How clients are trained, if not here.
    """
    messages: SimpleQueue[Message] = SimpleQueue()

    def work() -> None:
        failure = None
        try:
            _carry_out(luggage, plan, state, device, versions, helping, messages.put)
        except Exception as error:
            failure = failure_text(error)
        messages.put(JobEnded(plan.name, failure))

    # Only the thread that Ray has called may yield.
    threading.Thread(target=work, name="run", daemon=True).start()
    while not isinstance(message := messages.get(), JobEnded):
        yield message
    yield message


def _carry_out(
    luggage: Luggage,
    plan: RunPlan,
    state: bytes,
    device: str,
    versions: Mapping[str, str],
    helping: Helping | None,
    tell: Callable[[Message], None],
) -> None:
    ray = the_ray()
    check_versions(versions)
    keep_freed_memory()
    needed = PHOTOS, *(str(bundle.folder) for bundle in plan.bundles)
    study_folder = luggage.unpack(needed, ray.get_runtime_context().get_node_id())
    folder = study_folder / plan.folder
    fleet = replace(
        plan.fleet,
        pool=at_node(ray.get(luggage.pool), study_folder),
        state=folder,
        made_photos=study_folder / MADE_PHOTOS,
    )
    here = replace(plan, folder=folder, fleet=fleet)
    run_state.keep(folder, state)
    changes = run_state.Changes(folder)
    changes.take()
    told, spent = perf_counter(), 0.0

    def tell_state() -> None:
        nonlocal told, spent
        begun = perf_counter()
        if spent <= _TELLING * (begun - told):
            tell(changes.take())
            told = perf_counter()
            spent = told - begun

    helpers = None if helping is None else helping.helpers(luggage, plan)
    try:
        carry_out(study_folder, here, device, lambda value: tell(JobProgress(plan.name, value)), tell_state, helpers)
    finally:
        # Of a failed task, too: without its mark the next command begins it anew.
        tell(changes.take())
