"""Fakes with real behaviour: a clock that is wound by hand, and a federation without sockets or training."""

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from threading import Event, Lock
from typing import Any, Self

import numpy as np
import pytest

from fedlens_proto import blob, plans, wire
from fedlens_proto.programs.statements import Publisher
from fedlens_proto.v1 import admin_pb2, assignment_pb2, check_in_pb2, enrolment_pb2, manifest_pb2, update_pb2
from fedlens_server.engine import aggregation, assignments, clients, evaluation, recovery, rounds, updates
from fedlens_server.engine.cohorts.members import Member, RoundKey
from fedlens_server.engine.operators import bans, tasks
from fedlens_server.engine.operators.access import ADMIN, TokenGrant
from fedlens_server.engine.task import Task
from fedlens_server.engine.updates import Membership, ReceivedUpdate
from fedlens_server.planning.local_plans import WEIGHTS
from fedlens_server.store import Store
from fedlens_server.store.dialects import full
from tests.server.bundles import TinyBundle, tiny_bundle
from tests.server.elsewhere import address_of

START = 1_700_000_000.0
TRAINERS = TokenGrant(name="trainers", role=enrolment_pb2.CLIENT_ROLE_TRAINER)
EVALUATORS = TokenGrant(name="evaluators", role=enrolment_pb2.CLIENT_ROLE_EVALUATOR)
CAPABILITIES = enrolment_pb2.Capabilities(
    formats=[manifest_pb2.PROGRAM_FORMAT_PT2],
    bundle_classes=[manifest_pb2.BUNDLE_CLASS_FROZEN_BACKBONE, manifest_pb2.BUNDLE_CLASS_WHOLE_MODEL],
    plan_format=plans.FORMAT,
    tables=["state/mine", "state/model", "state/norms"],
)
# Of a client that runs `.pte` alone.
PHONE = enrolment_pb2.Capabilities(
    formats=[manifest_pb2.PROGRAM_FORMAT_PTE],
    bundle_classes=[manifest_pb2.BUNDLE_CLASS_WHOLE_MODEL],
    plan_format=plans.FORMAT,
)
SEED = "5eed" * 16
SETTINGS = {"method": "fedavg", "rounds": 3, "population": 2, "deadline_s": 60, "seed": SEED}


class WatchedLock:
    """A lock that tells when one thread waits for another to let it go."""

    def __init__(self) -> None:
        self._lock = Lock()
        self.wanted = Event()

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            self.wanted.set()
            self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


class ManualClock:
    """A clock that stands still until it is wound."""

    def __init__(self, start: float = START) -> None:
        self._now = start
        self._set_by = 0.0
        self._wound = asyncio.Event()

    def now(self) -> float:
        return self._now + self._set_by

    def calendar(self) -> float:
        return self.now()

    def elapsed(self) -> float:
        return self._now

    def jump(self, seconds: float) -> None:
        """Have somebody set the clock on the wall; no time passes by it."""
        self._set_by += seconds

    def wind(self, seconds: float) -> None:
        """Let time pass; who sleeps until then wakes."""
        self._now += seconds
        self._wound.set()
        self._wound = asyncio.Event()

    async def sleep_until(self, when: float) -> None:
        while self._now < when:
            await self._wound.wait()


def client_ids(count: int) -> list[bytes]:
    """Ids of so many clients, ascending."""
    return sorted(sha256(f"client {i}".encode()).digest() for i in range(count))


ALICE, BOB, CAROL, DAVE, EVE = client_ids(5)


def update_of(
    assignment: assignment_pb2.Assignment,
    tensors: Mapping[str, blob.Array] | None,
    num_examples: int = 10,
    *,
    tables: Mapping[str, Mapping[str, blob.Array]] | None = None,
    evaluations: Sequence[update_pb2.EvaluationSums] | None = None,
    class_counts: Sequence[int] = (),
    label_distribution: Sequence[float] = (),
    floats: blob.pb.Dtype = blob.pb.DTYPE_FLOAT32,
    base: bytes | None = None,
) -> tuple[update_pb2.UpdateHeader, bytes]:
    """Header and blobs as a client would send them.

    Args:
        assignment: What the client answers.
        tensors: Trained weights; with a base their differences to it. None: it uploads none.
        num_examples: Photos trained on.
        tables: Its other uploads by name, behind the weights.
        evaluations: None: of each that is asked for, a client without test photos.
        class_counts: Photos of each class.
        label_distribution: Noisy shares.
        floats: Type of the weights on the wire.
        base: Digest of the base.
    """
    if evaluations is None:
        evaluations = [update_pb2.EvaluationSums(label=each.label) for each in assignment.local_plan.evaluations]
    blobs = {} if tensors is None else {WEIGHTS: blob.encode(tensors, floats=floats, base=base)}
    blobs |= {name: blob.encode(table) for name, table in (tables or {}).items()}
    header = update_pb2.UpdateHeader(
        protocol=wire.PROTOCOL,
        phase=assignment.phase,
        bundle=assignment.bundle,
        num_examples=num_examples,
        class_counts=class_counts,
        label_distribution=label_distribution,
        evaluations=evaluations,
        uploads=[
            update_pb2.UploadedBlob(name=name, sha256=sha256(raw).digest(), size=len(raw))
            for name, raw in blobs.items()
        ],
    )
    return header, b"".join(blobs.values())


def evaluation_of(assignment: assignment_pb2.Assignment, **fields: Any) -> update_pb2.UpdateHeader:
    """What an evaluator sends: 8 of 10 photos right, but for these fields."""
    sums = update_pb2.EvaluationSums(label="global", count=10, correct=8, loss=2.0)
    found = {"phase": assignment.phase, "bundle": assignment.bundle, "evaluations": [sums], **fields}
    return update_pb2.UpdateHeader(protocol=wire.PROTOCOL, **found)


class Bench:
    """A server without sockets: store, federation and clock on one folder."""

    def __init__(self, folder: Path, clock: ManualClock | None = None) -> None:
        self.folder = folder
        self.clock = clock or ManualClock()
        self.publishers: list[Publisher] = []
        self._open()

    def _open(self) -> None:
        self.store = Store.open(address_of(self.folder))
        self.federation = recovery.load(self.store, self.clock, method_modules=True, publishers=self.publishers)
        self.begun: dict[tuple[bytes, int, int], Membership] = {}

    def close(self) -> None:
        self.federation.close()
        self.store.close()

    def reopen(self) -> None:
        """Stop and start again."""
        self.close()
        self._open()

    @property
    def task(self) -> Task:
        """The first task, as the engine knows it."""
        return self.federation.tasks[min(self.federation.tasks)]

    def member(self, client: bytes) -> Member:
        """A client in the first task's round that has not ended."""
        assert self.task.round is not None
        return self.task.round.members[client]

    def put_parts(self, bundle: TinyBundle) -> None:
        for raw in bundle.parts:
            with self.store.incoming() as incoming:
                incoming.write(raw)
                tasks.put_part(self.federation, incoming.finish()).result()

    def create(
        self,
        settings_json: str,
        bundles: Sequence[TinyBundle] | None = None,
        name: str = "task",
        statements: Sequence[bytes] = (),
    ) -> admin_pb2.Task:
        bundles = bundles or [tiny_bundle()]
        for bundle in bundles:
            self.put_parts(bundle)
        return tasks.create(
            self.federation,
            admin_pb2.CreateTaskRequest(
                protocol=1,
                name=name,
                manifests=[bundle.manifest for bundle in bundles],
                settings_json=settings_json,
                statements=statements,
            ),
            ADMIN,
        ).result()

    def make(self, *bundles: TinyBundle, name: str = "task", **settings: Any) -> admin_pb2.Task:
        """A task with `SETTINGS`, but for these."""
        return self.create(json.dumps(SETTINGS | settings), bundles, name)

    def start(self, *bundles: TinyBundle, **settings: Any) -> Self:
        """A task as of `make`, in its first round, with Alice and Bob."""
        self.make(*bundles, **settings)
        self.enrol([ALICE, BOB])
        return self

    def enrol(
        self,
        enrolling: Sequence[bytes],
        grant: TokenGrant = TRAINERS,
        capabilities: enrolment_pb2.Capabilities = CAPABILITIES,
    ) -> None:
        for future in [clients.enrol(self.federation, each, grant, capabilities) for each in enrolling]:
            future.result()
        self.settle()

    def settle(self) -> None:
        """Return when what the last commits set off has been committed too."""
        for _ in range(2):
            self.store.submit(lambda _: None).result()

    def check_in(self, client: bytes, task: int = 0) -> check_in_pb2.CheckInResponse:
        return assignments.check_in(self.federation, client, check_in_pb2.CheckInRequest(protocol=1, task=task))

    def assignment(self, client: bytes, task: int = 0) -> assignment_pb2.Assignment:
        response = self.check_in(client, task)
        assert response.HasField("assignment"), response
        found = response.assignment
        if found.answer == assignment_pb2.ANSWER_UPDATE:
            key = (client, found.task, found.round)
            self.begun[key] = updates.expect(self.federation, *key)
        return found

    def tensors(self, assignment: assignment_pb2.Assignment, name: str = "global") -> Mapping[str, blob.Array]:
        (digest,) = [item.sha256 for item in assignment.sets if item.name == name]
        return self.store.tensors(digest)

    def send(
        self, client: bytes, assignment: assignment_pb2.Assignment, header: update_pb2.UpdateHeader, raw: bytes
    ) -> update_pb2.Receipt:
        """Upload an update, begun when the client got its assignment; `raw` are its blobs, one after another."""
        body = wire.frame_update(header) + raw
        key = (client, assignment.task, assignment.round)
        membership = self.begun.get(key) or updates.expect(self.federation, *key)
        with ExitStack() as open_blobs:
            blobs, stream = [], BytesIO(raw)
            for upload in header.uploads:
                incoming = open_blobs.enter_context(self.store.incoming())
                incoming.write(stream.read(upload.size))
                blobs.append(incoming.finish(upload.sha256))
            received = ReceivedUpdate(
                header=header, body_sha256=sha256(body).digest(), body_size=len(body), blobs=tuple(blobs)
            )
            return updates.accept(self.federation, membership, received).result()

    def upload(
        self, client: bytes, tensors: Mapping[str, blob.Array] | None = None, num_examples: int = 10, **fields: Any
    ) -> update_pb2.Receipt:
        """Answer the client's assignment with these tensors; `fields` are those of `update_of`."""
        assignment = self.assignment(client)
        return self.send(client, assignment, *update_of(assignment, tensors, num_examples, **fields))

    def report(self, client: bytes, shift: float = 1.0, num_examples: int = 10, **fields: Any) -> update_pb2.Receipt:
        """Train by adding `shift` to every float, and upload."""
        start = self.tensors(self.assignment(client))
        trained = {name: value + (np.float32(shift) if value.dtype.kind == "f" else 1) for name, value in start.items()}
        return self.upload(client, trained, num_examples, **fields)

    def commit(self, alice: float = 1.0, bob: float = 1.0) -> None:
        """A round to which Alice and Bob report these shifts."""
        self.report(ALICE, alice)
        self.report(BOB, bob)
        self.advance()

    def expect(self, client: bytes = ALICE, number: int = 1, task: int = 1) -> Membership:
        return updates.expect(self.federation, client, task, number)

    def quarantine(self, membership: Membership, reason: str = "bad", body_sha256: bytes | None = None) -> None:
        updates.quarantine(self.federation, membership, reason, body_sha256).result()

    def fail(self, client: bytes, reason: Any = update_pb2.FAILURE_REASON_NO_PHOTOS, detail: str = "") -> None:
        """Give up the first round."""
        updates.accept_failure(self.federation, client, 1, 1, reason, detail).result()

    def evaluate(
        self, client: bytes, header: update_pb2.UpdateHeader | None = None, number: int = 1, body: bytes = bytes(32)
    ) -> update_pb2.Receipt:
        """Send the evaluation of a round, by default what is asked for."""
        header = header or evaluation_of(self.assignment(client))
        return evaluation.accept(self.federation, client, 1, number, header, body).result()

    def revoke(self, client: bytes) -> None:
        bans.ban(self.federation, client, "", ADMIN).result()

    def stop(self, task: str) -> None:
        tasks.stop(self.federation, tasks.find(self.federation, task), ADMIN).result()

    def forget(self, client: bytes) -> bool:
        return clients.forget(self.federation, client).result()

    def freeze(self, number: int = 1) -> None:
        """Close a round that is over, and do not aggregate it."""
        assert rounds.close(self.federation, RoundKey(1, number)).result()

    def advance(self) -> None:
        """Close and aggregate what is due."""
        for key in aggregation.due(self.federation):
            aggregation.advance(self.federation, key)
        self.settle()

    def show(self, task: str = "task") -> admin_pb2.ShowTaskResponse:
        return tasks.show(self.federation, task)

    def members(self, number: int = 1) -> dict[bytes, admin_pb2.MemberResult]:
        """The members of a round by client, as operators see them."""
        return {member.client_id: member for member in self.show().rounds[number - 1].members}

    def model(self, task: str = "task") -> Mapping[str, blob.Array]:
        return self.store.tensors(tasks.model(self.federation, task).blob_sha256)


def disk_full(*_: object) -> None:
    """What a function does that finds no room."""
    raise full()


def after_drawing(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Have something happen between drawing a cohort and the transaction that opens its round."""
    draw = rounds.next_cohort

    def drawn(*arguments: Any) -> rounds.Cohort | None:
        found = draw(*arguments)
        act()
        return found

    monkeypatch.setattr(rounds, "next_cohort", drawn)
