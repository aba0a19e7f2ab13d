"""The final examination, for clients that are people: each client's last model on three groups of photos.

group     photos
own       test photos of the client's own people
others    test photos of other clients' people
unseen    all photos of people without a client, except copies of photos that a client trains on
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Self

from fedlens.whole_file import replacing
from fedlens_edge_client.client.transport import Transport
from fedlens_edge_client.emulation.fleet.config import FleetConfig
from fedlens_edge_client.emulation.fleet.messages import client_name
from fedlens_edge_client.emulation.partitions import PartitionName, PoolPhoto
from fedlens_edge_client.emulation.transport_wrapper import TransportWrapper
from fedlens_edge_client.storage.album import Photo
from fedlens_proto import plans
from fedlens_proto.v1 import check_in_pb2


class _Examined(NamedTuple):
    """A photo with its album entry and class."""

    photo: PoolPhoto
    entry: Photo
    label: int


@dataclass(frozen=True)
class Examination:
    """The photos that all clients classify, and the results.

    Attributes:
        photos: Test photos of people with a client, and the evaluator's, of people without one.
        people: Names of each client's people.
        unseen: Names of people without a client.
        results: Entries of `values` by client, which `take` adds.
    """

    photos: Sequence[_Examined]
    people: Sequence[tuple[str, ...]]
    unseen: frozenset[str]
    results: dict[int, dict[str, Any]] = field(default_factory=dict)

    @classmethod
    def of(cls, fleet: FleetConfig) -> Self | None:
        """The examination of a fleet; None if its clients are not people."""
        pool, partition = fleet.pool, fleet.partition
        if partition.name is not PartitionName.CLIENTS:
            return None
        unseen = frozenset(partition.unseen_owners(pool))
        never_met = {photo.digest for photo in partition.evaluator_album(pool).photos(0).photos}
        photos = [
            _Examined(photo, pool.entry(label, photo, is_test=True), label)
            for side in (pool.test, pool.train)
            for label, members in enumerate(side)
            for photo in members
            if (photo.digest in never_met if photo.owner in unseen else side is pool.test)
        ]
        people = [partition.owners_of(pool, index) for index in range(fleet.clients)]
        return cls(photos, people, unseen)

    @property
    def entries(self) -> list[Photo]:
        """The album entries to classify."""
        return [entry for _, entry, _ in self.photos]

    def take(self, index: int, predictions: Mapping[bytes, int]) -> None:
        """Count a client's predictions, which are label indices by the digest of a photo."""
        own = set(self.people[index])
        sums: dict[str, dict[str, Any]] = {}
        for photo, entry, label in self.photos:
            predicted = predictions.get(entry.digest)
            if predicted is None:
                continue  # the photo is unreadable
            group = "own" if photo.owner in own else "unseen" if photo.owner in self.unseen else "others"
            found = sums.setdefault(group, {"count": 0, "correct": 0, "cameras": {}})
            counted = [found]
            if photo.camera:
                counted.append(found["cameras"].setdefault(photo.camera, {"count": 0, "correct": 0}))
            for each in counted:
                each["count"] += 1
                each["correct"] += predicted == label
        self.results[index] = {"client": client_name(index), "people": len(own), **sums}

    @property
    def values(self) -> list[dict[str, Any]]:
        """For each client its name, its number of people, and by group sums over photos, also by camera."""
        return [self.results[index] for index in sorted(self.results)]


class EvaluatedModelTransport(TransportWrapper):
    """A `Transport` that names the model of the last personal evaluation when the tasks have ended.

    A server computes a client's own weighted sum (pFedSim's) for one round and afterwards names another model; the
    client's cache still has the sum. If another round came after the evaluation, the server's model is used.
    """

    def __init__(self, inner: Transport, file: Path) -> None:
        """`file` keeps the name of that model, also for a resumed run."""
        super().__init__(inner)
        self._file = file

    async def check_in(self, request: check_in_pb2.CheckInRequest) -> check_in_pb2.CheckInResponse:
        """As the inner transport, with the evaluated model when the tasks have ended."""
        response = await self._inner.check_in(request)
        kind = response.WhichOneof("result")
        if kind == "assignment":
            assignment = response.assignment
            plan = assignment.local_plan
            self._file.unlink(missing_ok=True)
            if plan.evaluations and not plan.keeps and not plan.uploads:
                evaluated = check_in_pb2.CurrentModel(
                    task=assignment.task,
                    bundle=assignment.bundle,
                    sets=assignment.sets,
                    rules=plans.start_rules(plan),
                    extractors=plan.extractors,
                )
                with replacing(self._file) as partial:
                    partial.write_bytes(evaluated.SerializeToString())
        elif kind == "finished" and self._file.is_file():
            del response.finished.models[:]
            response.finished.models.append(check_in_pb2.CurrentModel.FromString(self._file.read_bytes()))
        return response
