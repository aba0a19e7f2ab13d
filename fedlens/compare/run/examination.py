"""The final examination, where clients are people: what each client's last model sees in whose photos.

group     photos
own       the test photos of the client's own people
others    the test photos of other clients' people
unseen    all photos of people of whom no client has any
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Self

from fedlens.compare.run.direct_transport import CheckInTransport
from fedlens_edge_client.client.transport import Transport
from fedlens_edge_client.emulation.fleet.config import FleetConfig
from fedlens_edge_client.emulation.fleet.messages import client_name
from fedlens_edge_client.emulation.partitions import PartitionName, PoolPhoto
from fedlens_edge_client.storage.album import Photo
from fedlens_proto.v1 import check_in_pb2


class _Examined(NamedTuple):
    """A photo of a known class and person."""

    entry: Photo
    label: int
    owner: str
    camera: str


@dataclass(frozen=True)
class Examination:
    """The photos that all clients classify, and what came out.

    Attributes:
        photos: Test photos of people who have a client, and all photos of those who have none.
        people: Names, by client.
        unseen: Names of people who have no client.
        results: What `values` gives, by client; filled by `take`.
    """

    photos: Sequence[_Examined]
    people: Sequence[tuple[str, ...]]
    unseen: frozenset[str]
    results: dict[int, dict[str, Any]] = field(default_factory=dict)

    @classmethod
    def of(cls, fleet: FleetConfig) -> Self | None:
        """That of a fleet; None: its clients are no people."""
        pool, partition = fleet.pool, fleet.partition
        if partition.name is not PartitionName.CLIENTS:
            return None
        unseen = frozenset(partition.unseen_owners(pool))

        def examined(label: int, photo: PoolPhoto) -> _Examined:
            return _Examined(pool.entry(label, photo, is_test=True), label, photo.owner, photo.camera)

        tested = [examined(label, photo) for label, members in enumerate(pool.test) for photo in members]
        never_seen = [
            examined(label, photo)
            for label, members in enumerate(pool.train)
            for photo in members
            if photo.owner in unseen
        ]
        people = [partition.owners_of(pool, index) for index in range(fleet.clients)]
        return cls([*tested, *never_seen], people, unseen)

    @property
    def entries(self) -> list[Photo]:
        """What is to be classified."""
        return [photo.entry for photo in self.photos]

    def take(self, index: int, answers: Mapping[bytes, int]) -> None:
        """Count what a client has seen in the photos; `answers` are label indices by digest."""
        own = set(self.people[index])
        sums: dict[str, dict[str, Any]] = {}
        for photo in self.photos:
            answer = answers.get(photo.entry.digest)
            if answer is None:
                continue  # it could not be read
            group = "own" if photo.owner in own else "unseen" if photo.owner in self.unseen else "others"
            found = sums.setdefault(group, {"count": 0, "correct": 0, "cameras": {}})
            counted = [found]
            if photo.camera:
                counted.append(found["cameras"].setdefault(photo.camera, {"count": 0, "correct": 0}))
            for each in counted:
                each["count"] += 1
                each["correct"] += answer == photo.label
        self.results[index] = {"client": client_name(index), "people": len(own), **sums}

    @property
    def values(self) -> list[dict[str, Any]]:
        """Of every client its name, how many people it has, and by group sums over photos, also by camera."""
        return [self.results[index] for index in sorted(self.results)]


class AsMeasured(CheckInTransport):
    """A `Transport` that names, once the tasks have ended, the model of the last personal evaluation.

    A server computes a client's own mix (pFedSim's) for a round alone and afterwards names a stand-in; the client's
    cache still has the mix. Where another round came after the evaluation, the server's word counts.
    """

    def __init__(self, inner: Transport, file: Path) -> None:
        """`file` remembers that model, also for a run that is interrupted."""
        super().__init__(inner)
        self._file = file

    async def check_in(self, request: check_in_pb2.CheckInRequest) -> check_in_pb2.CheckInResponse:
        """As the inner transport, with the evaluated model when the tasks have ended."""
        response = await self._inner.check_in(request)
        kind = response.WhichOneof("result")
        if kind == "assignment":
            assignment = response.assignment
            self._file.unlink(missing_ok=True)
            if assignment.local_plan.HasField("evaluation") and not assignment.local_plan.stages:
                told = check_in_pb2.CurrentModel(task=assignment.task, bundle=assignment.bundle, sets=assignment.sets)
                unfinished = self._file.with_suffix(".part")
                unfinished.write_bytes(told.SerializeToString())
                unfinished.replace(self._file)
        elif kind == "finished" and self._file.is_file():
            del response.finished.models[:]
            response.finished.models.append(check_in_pb2.CurrentModel.FromString(self._file.read_bytes()))
        return response
