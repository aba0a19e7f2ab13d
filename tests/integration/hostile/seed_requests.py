"""Valid requests for every endpoint, about clients and tasks that nobody misses; the honest ones are never named."""

import base64
import json
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from hashlib import sha256
from random import Random
from typing import Any

import numpy as np
from google.protobuf.message import Message

from fedlens_export.signing import signed
from fedlens_proto import keyed_hash, plans
from fedlens_proto.blob import Array, encode
from fedlens_proto.v1 import (
    admin_pb2,
    admission_pb2,
    assignment_pb2,
    check_in_pb2,
    enrolment_pb2,
    manifest_pb2,
    update_pb2,
)
from tests.integration.hostile.mutations import Request
from tests.integration.hostile.plain_server import PlainServer, Reply
from tests.server import networks
from tests.server.bundles import TinyBundle, sealed, tiny_bundle
from tests.vectors.statements import KEYS, statement

# Honest clients run programs of another format, and so are never drawn for these tasks, nor these clients for theirs.
PTE = manifest_pb2.PROGRAM_FORMAT_PTE
LARGE = 9_000  # features; blobs above 64 KiB are files
_TENSORS: dict[str, dict[str, Array]] = {
    "small": {"fc.bias": np.full(2, 0.5, np.float32), "fc.weight": np.full((2, 3), 0.5, np.float32)},
    "large": {"fc.bias": np.full(2, 0.5, np.float32), "fc.weight": np.full((2, LARGE), 0.5, np.float32)},
    "mixed": networks.weights(1.0),
}
SUBJECTS, LEAVERS = 64, 32
CLIENTS_OF_A_TOKEN = 600
SCAPEGOATS = "scapegoats"
SHARED: dict[str, Any] = {"rounds": 10**6, "seed": "5e" * 32, "min_reports": 2, "max_consecutive_abandoned": 10**6}
ARRIVALS: dict[str, Any] = {
    **SHARED,
    **{"selection": "arrivals", "goal": 2, "over_selection": 2.0, "rest": 0, "patience_s": 0, "canary": 0},
}
TASKS: dict[str, tuple[str, dict[str, Any]]] = {
    "hostile-small": ("small", {**ARRIVALS, "method": "fedavg", "release": "manual"}),
    "hostile-large": ("large", {**ARRIVALS, "method": "fedavg", "codec": "f32", "difference": True}),
    "hostile-mixed": ("mixed", {**ARRIVALS, "method": "pfedsim"}),
    "hostile-drawn": ("small", {**SHARED, "method": "fedavg", "population": 2, "cohort": 2, "deadline_s": 2}),
}
_PROGRAMS = tiny_bundle(formats=[PTE], model="hostile")
BUNDLES = {name: sealed(_PROGRAMS.parsed, tensors, _PROGRAMS.parts[1]) for name, tensors in _TENSORS.items()}
_NAMES = {bundle.id: name for name, bundle in BUNDLES.items()}
ABLE = enrolment_pb2.Capabilities(
    formats=[PTE],
    bundle_classes=[manifest_pb2.BUNDLE_CLASS_WHOLE_MODEL],
    plan_format=plans.FORMAT,
    tables=["*"],
)
Endpoint = tuple[str, str, str]  # side, method, route


@dataclass(eq=False)
class Subject:
    """A client that hostile requests are sent for."""

    secret: bytes
    token: str
    assignment: assignment_pb2.Assignment | None = None

    @property
    def id(self) -> str:
        return keyed_hash.client_id(self.secret).hex()

    @property
    def bearer(self) -> str:
        return f"Bearer {base64.urlsafe_b64encode(self.secret).decode()}"


@dataclass
class World:
    """What requests can be about, as the answers of the server tell it."""

    server: PlainServer
    tokens: dict[str, str] = field(default_factory=dict)  # of clients, by name
    readers_bearer: str = ""
    cookie: str = ""  # of an operator who is logged in
    subjects: deque[Subject] = field(default_factory=lambda: deque(maxlen=SUBJECTS))
    leavers: deque[Subject] = field(default_factory=lambda: deque(maxlen=LEAVERS))
    blobs: deque[bytes] = field(default_factory=lambda: deque(maxlen=32))

    @classmethod
    def of(cls, server: PlainServer) -> "World":
        """A server with tokens for these clients and for an operator who only reads."""
        make, world = server.admin.create_token, cls(server)
        for name, role in (
            ("subjects", admission_pb2.TOKEN_ROLE_TRAINER),
            ("judges", admission_pb2.TOKEN_ROLE_EVALUATOR),
            (SCAPEGOATS, admission_pb2.TOKEN_ROLE_TRAINER),
        ):
            world.tokens[name] = make(name, role, max_uses=10**9, per_minute=10**6).secret
        world.readers_bearer = f"Bearer {make('reader', admission_pb2.TOKEN_ROLE_READ).secret}"
        return world

    @property
    def admin_bearer(self) -> str:
        return f"Bearer {self.server.process.profile.token}"

    def url(self, side: str) -> str:
        return self.server.process.url if side == "clients" else self.server.process.profile.url

    def subject(self, random: Random, *, answer: assignment_pb2.Answer | None = None) -> Subject:
        """Any client, one with an assignment of this kind if there is any; a stranger if there is none."""
        fitting = [each for each in self.subjects if each.assignment and each.assignment.answer == answer]
        known = fitting or list(self.subjects)
        return random.choice(known) if known else Subject(random.randbytes(32), "subjects")

    def enrolled(self, subject: Subject, answer: Reply) -> None:
        if answer.status != 200:
            return
        if len(self.subjects) == SUBJECTS:
            self.leavers.append(self.subjects[0])
        self.subjects.append(subject)

    def told(self, subject: Subject, answer: Reply) -> None:
        """Take note of the answer to a check-in."""
        if answer.status != 200:
            return
        response = check_in_pb2.CheckInResponse.FromString(answer.body)
        subject.assignment = response.assignment if response.HasField("assignment") else None
        if subject.assignment is not None:
            self.blobs += [item.sha256 for item in subject.assignment.sets]
        quits = (check_in_pb2.WAIT_REASON_SITS_OUT, check_in_pb2.WAIT_REASON_NO_TASK)
        if response.wait.reason in quits and subject in self.subjects:
            self.subjects.remove(subject)


Seed = Callable[[World, Random], Request]


def any_of(seeds: Mapping[Endpoint, tuple[float, Seed]], world: World, random: Random) -> Request:
    """A valid request to any of these endpoints, each as often as its weight says."""
    (endpoint,) = random.choices(list(seeds), [weight for weight, _ in seeds.values()])
    side, method, _ = endpoint
    return replace(seeds[endpoint][1](world, random), side=side, method=method)


def plain(path: str, world: World, random: Random) -> Request:
    """A request of an operator, or one that needs no credential."""
    bearer = world.readers_bearer if random.random() < 0.2 else world.admin_bearer
    return Request(side="", method="", path=path, bearer=bearer)


def enrol(world: World, random: Random) -> Request:
    name = random.choice([*world.tokens, "subjects", "subjects"])
    # The same ones again and again: a server remembers each client, which is no growth that requests cause.
    subject = Subject(sha256(f"{name} {random.randrange(CLIENTS_OF_A_TOKEN)}".encode()).digest(), name)
    message = enrolment_pb2.EnrolRequest(
        protocol=1,
        enrolment_token=world.tokens[name],
        client_id=keyed_hash.client_id(subject.secret),
        capabilities=ABLE,
    )
    return of_client(subject, "/v1/clients", message, learn=lambda answer: world.enrolled(subject, answer))


def forget(world: World, random: Random) -> Request:
    subject = world.leavers.popleft() if world.leavers else Subject(random.randbytes(32), "subjects")
    return of_client(subject, "/v1/clients/self", enrolment_pb2.ForgetRequest(protocol=1))


def check_in(world: World, random: Random) -> Request:
    subject = world.subject(random)
    message = check_in_pb2.CheckInRequest(protocol=1, num_examples=10)
    return of_client(subject, "/v1/check-in", message, learn=lambda answer: world.told(subject, answer))


def get_blob(world: World, random: Random) -> Request:
    subject = world.subject(random, answer=assignment_pb2.ANSWER_UPDATE)
    sets = subject.assignment.sets if subject.assignment else ()
    digest = random.choice(sets).sha256 if sets else random.choice(world.blobs or [bytes(32)])
    return of_client(subject, f"/v1/blobs/{digest.hex()}", headers=_range(random))


def put_update(world: World, random: Random) -> Request:
    subject = world.subject(random, answer=assignment_pb2.ANSWER_UPDATE)
    assignment = subject.assignment or assignment_pb2.Assignment(task=10**6, round=1)
    uploaded = assignment.local_plan.uploads[:1]
    bases = {each.name: each.sha256 for each in assignment.sets}
    base = bases.get(uploaded[0].base) if uploaded else None
    blob = _blob(_NAMES.get(assignment.bundle, "small"), base)
    digest = sha256(blob).digest()
    uploads = [update_pb2.UploadedBlob(name=each.name, sha256=digest, size=len(blob)) for each in uploaded]
    header = _header(assignment, uploads=uploads)
    return of_round(subject, assignment, "update", header, framed=True, tail=blob * len(uploads))


@lru_cache(64)
def _blob(bundle: str, base: bytes | None) -> bytes:
    """Weights for a bundle, or a difference to those with the digest `base`."""
    return encode(_TENSORS[bundle], base=base)


def put_evaluation(world: World, random: Random) -> Request:
    subject = world.subject(random, answer=assignment_pb2.ANSWER_EVALUATION)
    assignment = subject.assignment or assignment_pb2.Assignment(task=10**6, round=1)
    return of_round(subject, assignment, "evaluation", _header(assignment), framed=True)


def report_failure(world: World, random: Random) -> Request:
    subject = world.subject(random, answer=assignment_pb2.ANSWER_UPDATE)
    assignment = subject.assignment or assignment_pb2.Assignment(task=10**6, round=1)
    message = update_pb2.FailureRequest(protocol=1, reason=update_pb2.FAILURE_REASON_INTERNAL, detail="no space")
    return of_round(subject, assignment, "failure", message)


def _header(assignment: assignment_pb2.Assignment, **fields: Any) -> update_pb2.UpdateHeader:
    evaluations = [
        update_pb2.EvaluationSums(label=each.label, count=4, correct=1, loss=5.0)
        for each in assignment.local_plan.evaluations
    ]
    return update_pb2.UpdateHeader(
        protocol=1, bundle=assignment.bundle, phase=assignment.phase, num_examples=10, evaluations=evaluations, **fields
    )


def of_client(subject: Subject, path: str, message: Message | None = None, **more: Any) -> Request:
    return Request(side="", method="", path=path, bearer=subject.bearer, message=message, **more)


def of_round(
    subject: Subject, assignment: assignment_pb2.Assignment, what: str, message: Message, **more: Any
) -> Request:
    """A member's answer; accepted or refused, it needs another assignment then."""
    path = f"/v1/tasks/{assignment.task}/rounds/{assignment.round}/{what}"
    return of_client(subject, path, message, learn=lambda *_: setattr(subject, "assignment", None), **more)


def put_part(world: World, random: Random) -> Request:
    content = random.choice(_bundle(random).parts)
    return replace(plain(f"/v1/admin/parts/{sha256(content).hexdigest()}", world, random), tail=content)


def has_part(world: World, random: Random) -> Request:
    return plain(f"/v1/admin/parts/{sha256(random.choice(_bundle(random).parts)).hexdigest()}", world, random)


def create_task(world: World, random: Random) -> Request:
    name = random.choice(list(TASKS))
    bundle, settings = TASKS[name]
    manifests = [BUNDLES[bundle].manifest]
    message = admin_pb2.CreateTaskRequest(
        protocol=1, name=name, manifests=manifests, settings_json=json.dumps(settings)
    )
    return replace(plain("/v1/admin/tasks", world, random), message=message)


def of_task(action: str, world: World, random: Random, message: Message | None = None) -> Request:
    made = plain(f"/v1/admin/tasks/{random.choice(list(TASKS))}{action}", world, random)
    return replace(made, message=message)


def change_task(world: World, random: Random) -> Request:
    settings = random.choice(({"goal": 2}, {"goal": 3}, {"max_failures": 20}, {"clip": False}, {"deadline_s": 5}))
    message = admin_pb2.ChangeTaskRequest(protocol=1, settings_json=json.dumps(settings))
    return of_task("/settings", world, random, message)


def renew_task(world: World, random: Random) -> Request:
    bundle = sha256(_bundle(random).manifest).digest()
    signed_one = signed(statement(manifest=bundle, serial=random.randrange(1, 4), floor=0), KEYS["ann"])
    return of_task("/statements", world, random, admin_pb2.RenewTaskRequest(protocol=1, statements=[signed_one]))


def of_one_round(action: str, world: World, random: Random) -> Request:
    return of_task(action, world, random, admin_pb2.RoundRequest(protocol=1, round=random.randrange(30)))


def get_any_blob(world: World, random: Random) -> Request:
    digest = random.choice(world.blobs or [bytes(32)])
    return replace(plain(f"/v1/admin/blobs/{digest.hex()}", world, random), headers=_range(random))


def list_clients(world: World, random: Random) -> Request:
    query = random.choice(
        (
            "limit=10",
            f"after={world.subject(random).id}&limit=5",
            "token=subjects&state=sits-out",
            f"bundle={BUNDLES['small'].id.hex()}&state=active",
            "seen_within_s=60&state=banned",
        )
    )
    return plain(f"/v1/admin/clients?{query}", world, random)


def of_one_client(action: str, world: World, random: Random, message: Message | None = None) -> Request:
    return replace(plain(f"/v1/admin/clients/{world.subject(random).id}{action}", world, random), message=message)


def create_token(world: World, random: Random) -> Request:
    message = admission_pb2.CreateTokenRequest(
        protocol=1,
        name=f"token {random.randrange(50)}",
        role=random.choice(admission_pb2.TokenRole.values()[1:]),
        expires_in_s=1.0,
    )
    return replace(plain("/v1/admin/tokens", world, random), message=message)


def of_token(action: str, world: World, random: Random, message: Message | None = None) -> Request:
    name = random.choice((SCAPEGOATS, f"token%20{random.randrange(50)}"))
    return replace(plain(f"/v1/admin/tokens/{name}/{action}", world, random), message=message)


def list_audit(world: World, random: Random) -> Request:
    return plain(
        f"/v1/admin/audit?{random.choice(('within_s=1', 'before=20', 'within_s=5&before=100'))}", world, random
    )


def _bundle(random: Random) -> TinyBundle:
    return random.choice(list(BUNDLES.values()))


def _range(random: Random) -> tuple[tuple[str, str], ...]:
    return random.choice(((), (), (("Range", "bytes=10-"),), (("Range", "bytes=0-99"),), (("Range", "bytes=-64"),)))


_BAN = admission_pb2.BanRequest(protocol=1, reason="noise")
_ROUND = "/v1/tasks/{task}/rounds/{round}"
API_SEEDS: dict[Endpoint, tuple[float, Seed]] = {
    ("clients", "POST", "/v1/clients"): (10, enrol),
    ("clients", "DELETE", "/v1/clients/self"): (2, forget),
    ("clients", "POST", "/v1/check-in"): (20, check_in),
    ("clients", "GET", "/v1/blobs/{sha256}"): (6, get_blob),
    ("clients", "PUT", f"{_ROUND}/update"): (20, put_update),
    ("clients", "PUT", f"{_ROUND}/evaluation"): (4, put_evaluation),
    ("clients", "POST", f"{_ROUND}/failure"): (2, report_failure),
    **{("clients", "GET", path): (0.3, partial(plain, path)) for path in ("/join", "/.well-known/assetlinks.json")},
    ("operators", "GET", "/metrics"): (0.3, partial(plain, "/metrics")),
    ("operators", "PUT", "/v1/admin/parts/{sha256}"): (1, put_part),
    ("operators", "HEAD", "/v1/admin/parts/{sha256}"): (1, has_part),
    ("operators", "POST", "/v1/admin/tasks"): (4, create_task),
    ("operators", "GET", "/v1/admin/tasks"): (1, partial(plain, "/v1/admin/tasks")),
    ("operators", "GET", "/v1/admin/tasks/{task}"): (1, partial(of_task, "")),
    ("operators", "POST", "/v1/admin/tasks/{task}/stop"): (0.3, partial(of_task, "/stop")),
    ("operators", "DELETE", "/v1/admin/tasks/{task}"): (1, partial(of_task, "")),
    ("operators", "POST", "/v1/admin/tasks/{task}/pause"): (0.5, partial(of_task, "/pause")),
    ("operators", "POST", "/v1/admin/tasks/{task}/resume"): (2, partial(of_task, "/resume")),
    ("operators", "POST", "/v1/admin/tasks/{task}/deadline"): (1, partial(of_task, "/deadline")),
    ("operators", "POST", "/v1/admin/tasks/{task}/settings"): (1, change_task),
    ("operators", "POST", "/v1/admin/tasks/{task}/statements"): (1, renew_task),
    ("operators", "POST", "/v1/admin/tasks/{task}/rollback"): (1, partial(of_one_round, "/rollback")),
    ("operators", "POST", "/v1/admin/tasks/{task}/release"): (1, partial(of_one_round, "/release")),
    ("operators", "GET", "/v1/admin/tasks/{task}/model"): (1, partial(of_task, "/model")),
    ("operators", "GET", "/v1/admin/blobs/{sha256}"): (2, get_any_blob),
    ("operators", "GET", "/v1/admin/clients"): (1, list_clients),
    ("operators", "GET", "/v1/admin/clients/{client}"): (1, partial(of_one_client, "")),
    ("operators", "POST", "/v1/admin/clients/{client}/ban"): (0.5, partial(of_one_client, "/ban", message=_BAN)),
    ("operators", "POST", "/v1/admin/clients/{client}/unban"): (1, partial(of_one_client, "/unban")),
    ("operators", "POST", "/v1/admin/tokens"): (1, create_token),
    ("operators", "GET", "/v1/admin/tokens"): (0.5, partial(plain, "/v1/admin/tokens")),
    ("operators", "POST", "/v1/admin/tokens/{token}/revoke"): (0.3, partial(of_token, "revoke")),
    ("operators", "POST", "/v1/admin/tokens/{token}/ban"): (0.5, partial(of_token, "ban", message=_BAN)),
    ("operators", "POST", "/v1/admin/tokens/{token}/unban"): (1, partial(of_token, "unban")),
    ("operators", "GET", "/v1/admin/audit"): (0.5, list_audit),
    ("operators", "POST", "/v1/admin/backups"): (
        0.1,
        lambda world, random: replace(
            plain("/v1/admin/backups", world, random), message=admin_pb2.BackupRequest(protocol=1, keep=1)
        ),
    ),
    **{
        (side, "GET", path): (0.3, partial(plain, path))
        for side in ("clients", "operators")
        for path in ("/healthz", "/readyz")
    },
}
"""By endpoint: how often it is asked for, and a valid request."""
