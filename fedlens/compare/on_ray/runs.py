"""All runs of a study on a Ray cluster, as the command sees them: progress, states that it keeps, and losses."""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from time import monotonic
from typing import Any

from fedlens.compare import run_state
from fedlens.compare.on_ray import node
from fedlens.compare.on_ray.cluster import RayConfig, clients_at_a_time, missing, the_ray
from fedlens.compare.on_ray.helping import Helping
from fedlens.compare.on_ray.luggage import Luggage, without_photos
from fedlens.compare.plan import RunPlan
from fedlens.compare.work import prepare
from fedlens.jobs import LOOK_EVERY_S, JobEnded, JobProgress
from fedlens.reports.made import made

# A run that is lost so often without a new state would be lost for ever.
MOST_LOSSES = 3
_REMOVAL_TIMEOUT_S = 5.0
# After so long without a message, the nodes are counted.
_QUIET_S = 10.0
_NAMED = re.compile(r"[A-Z]\w*(Error|Exception): ")


def run_on_ray(
    study_folder: Path,
    runs: Sequence[RunPlan],
    device: str,
    base: Path,
    config: RayConfig,
    should_stop: Callable[[], bool] = lambda: False,
) -> Iterator[JobProgress | JobEnded]:
    """Carry out runs, each a task of the connected cluster; yields messages as `jobs.run_jobs`.

    Each run's folder follows the one at the node: round for round, and at the end with the result. A run whose worker
    or node is lost goes on elsewhere from there. Where CPUs suffice for two clients of each run, a round's clients
    are tasks too. Ends all tasks once `should_stop` returns True or the caller stops iterating.

    Args:
        study_folder: Folder of the bundles.
        runs: Runs without a result.
        device: Torch's name of the device that runs programs.
        base: Folder for files of nodes, on each node.
        config: What each run needs.
        should_stop: Called several times a second.
    """
    ray = the_ray()
    luggage = Luggage.pack(study_folder, runs, base)
    versions, needs = made(), config.needs
    helping = None
    if (count := clients_at_a_time(config, len(runs))) > 1:
        helping = Helping(count, needs, versions)
        needs = needs | {"num_cpus": 0}  # a run waits for its clients
    carried_out = ray.remote(num_returns="streaming", max_retries=0, **needs)(node.carried_out)
    losses: Counter[str] = Counter()
    running: dict[Any, RunPlan] = {}

    def begin(run: RunPlan) -> None:
        prepare(run)
        state = run_state.Changes(run.folder).take()
        plan = without_photos(run, run.folder.relative_to(study_folder))
        running[carried_out.options(name=run.name).remote(luggage, plan, state, device, versions, helping)] = run

    try:
        for run in runs:
            begin(run)
        heard = monotonic()
        while running and not should_stop():
            ready, _ = ray.wait(list(running), timeout=LOOK_EVERY_S)
            if ready:
                heard = monotonic()
            elif monotonic() - heard > _QUIET_S and (lack := missing(config)) is not None:
                heard = monotonic()
                yield JobProgress(next(iter(running.values())).name, f"waits for a node: {lack}")
            for generator in ready:
                run = running[generator]
                try:
                    message: Any = ray.get(next(generator))
                except ray.exceptions.RayTaskError as error:
                    message = JobEnded(run.name, f"its node cannot begin it: {_named_error(str(error.cause))}")
                except (ray.exceptions.RayError, StopIteration):
                    del running[generator]
                    losses[run.name] += 1
                    if losses[run.name] == MOST_LOSSES:
                        yield JobEnded(run.name, f"its worker was lost {MOST_LOSSES} times in the same round")
                    else:
                        yield JobProgress(run.name, "its worker was lost; it goes on elsewhere")
                        begin(run)
                    continue
                if isinstance(message, bytes):
                    run_state.keep(run.folder, message)
                    losses.pop(run.name, None)
                    continue
                if isinstance(message, JobEnded):
                    del running[generator]
                yield message
    finally:
        # Without a connection, Ray would begin a cluster of its own.
        if ray.is_initialized():
            for generator in running:
                ray.cancel(generator, force=True)
            _remove(luggage)


def _named_error(text: str) -> str:
    """The line of an error with its traceback that has the error's name; the first one if none has."""
    lines = text.splitlines() or [text]
    return next((line for line in reversed(lines) if _NAMED.match(line)), lines[0])


def _remove(luggage: Luggage) -> None:
    """Remove the folders at all nodes."""
    ray, at = the_ray(), import_module("ray.util.scheduling_strategies").NodeAffinitySchedulingStrategy
    remove = ray.remote(num_cpus=0, max_retries=0)(_remove_at)
    nodes = [each["NodeID"] for each in ray.nodes() if each["Alive"]]
    removals = [remove.options(scheduling_strategy=at(name, soft=False)).remote(luggage, name) for name in nodes]
    ray.wait(removals, num_returns=len(removals), timeout=_REMOVAL_TIMEOUT_S)


def _remove_at(luggage: Luggage, name: str) -> None:
    luggage.remove(name)
