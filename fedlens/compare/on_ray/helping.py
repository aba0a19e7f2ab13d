"""The clients of a run as tasks of their own, where CPUs are at least twice those that runs need."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedlens.compare.on_ray.cluster import in_a_line, the_ray
from fedlens.compare.on_ray.luggage import Luggage
from fedlens.compare.plan import RunPlan
from fedlens.compare.run.running import RunFailed
from fedlens.compare.run.side_by_side import ClientWork, Helpers
from fedlens.errors import FedlensError
from fedlens.reports.made import made
from fedlens_edge_client.engines import Engine
from fedlens_edge_client.engines.memory import keep_freed_memory
from fedlens_edge_client.errors import EdgeClientError
from fedlens_edge_client.training.local_training import TrainingResult
from fedlens_proto.manifest import Bundle

# What results depend on, beside the processor.
_SAME = ("fedlens", "torch", "numpy")
_MOST_LOSSES = 3
# Of this process, by the luggage that has the bundle, and the bundle.
_engines: dict[tuple[str, bytes], Engine] = {}


class OtherVersion(FedlensError):
    """A node has another version of what results depend on."""


@dataclass(frozen=True)
class Helping:
    """How the clients of a run are trained.

    Attributes:
        count: Tasks at a time.
        needs: Options of each.
        versions: Those that the command has.
    """

    count: int
    needs: Mapping[str, float]
    versions: Mapping[str, str]

    def helpers(self, luggage: Luggage, plan: RunPlan) -> Helpers:
        """Tasks for the clients of a run; Ray repeats one whose worker or node is lost."""
        ray = the_ray()
        task = ray.remote(max_retries=_MOST_LOSSES, **self.needs)(_carried_out)
        task = task.options(name=f"a client of {plan.name}")
        bundles = [bundle.folder for bundle in plan.bundles]

        def carry_out(work: ClientWork) -> TrainingResult | EdgeClientError:
            try:
                found: TrainingResult | EdgeClientError = ray.get(task.remote(luggage, bundles, self.versions, work))
            except ray.exceptions.RayTaskError as error:
                raise error.cause from error
            except ray.exceptions.RayError as error:
                raise RunFailed(f"a client's task was lost {1 + _MOST_LOSSES} times: {in_a_line(error)}") from error
            return found

        return Helpers(self.count, carry_out)


def check_versions(versions: Mapping[str, str]) -> None:
    """Check that this node has the versions that the command has.

    Raises:
        OtherVersion: It has others.
    """
    found = made()
    for name in _SAME:
        if found[name] != versions[name]:
            raise OtherVersion(
                f"node {the_ray().util.get_node_ip_address()} has {name} {found[name]}, but this command has "
                f"{versions[name]}; install the same there"
            )


def _carried_out(
    luggage: Luggage, bundles: Sequence[Path], versions: Mapping[str, str], work: ClientWork
) -> TrainingResult | EdgeClientError:
    if (luggage.name, work.bundle) not in _engines:
        from fedlens_edge_client.engines.torch import TorchEngine

        check_versions(versions)
        keep_freed_memory()
        folder = luggage.unpack(map(str, bundles), the_ray().get_runtime_context().get_node_id())
        for opened in (Bundle.open(folder / bundle) for bundle in bundles):
            _engines[luggage.name, opened.id] = TorchEngine(opened)
    return work.carry_out(_engines[luggage.name, work.bundle])
