"""Opening a round: who takes part, and which sets everybody downloads."""

import json
from collections.abc import Iterable, Mapping
from functools import partial
from typing import NamedTuple

from sqlalchemy import insert

from fedlens_proto import keyed_hash
from fedlens_proto.manifest import INITIAL
from fedlens_proto.v1 import admin_pb2
from fedlens_server.engine import downloads, local_plans
from fedlens_server.engine.downloads import Downloads
from fedlens_server.engine.method_calls import MethodFailed, of_method
from fedlens_server.engine.view import Federation, GlobalModel, Member, Round, Task, TaskBundle
from fedlens_server.methods import Phase, State, TensorSet
from fedlens_server.store import Transaction, schema

NOBODY = b""  # as the client for whom sets are made that evaluators get


class Cohort(NamedTuple):
    """Who takes part in a round.

    Attributes:
        phase: Index of the round's phase.
        population: Who could take part, ascending by id.
        downloads: By member, ascending by id, what the method gives it.
        sitting_out: Clients to whom the method gives nothing in this phase, of those that were asked about.
    """

    phase: int
    population: tuple[bytes, ...]
    downloads: Mapping[bytes, Mapping[str, TensorSet]]
    sitting_out: frozenset[bytes]


def cohort(task: Task, values: State, committed: int) -> Cohort:
    """Who takes part in the round that follows so many committed ones.

    Nobody is drawn who sits the phase out: where many do, rounds would have too few members, or none.

    Raises:
        MethodFailed, NothingToAggregate, StorageFull: The method gives no downloads.
    """
    population = tuple(sorted(task.eligible))
    index = task.phase_of(committed)
    phase = task.method_phase(index)
    size = task.phases[index].cohort or len(population)

    def downloads(clients: Iterable[bytes]) -> dict[bytes, Mapping[str, TensorSet] | None]:
        return {client: of_method(partial(task.method.download, phase, values, client)) for client in clients}

    drawn = found = downloads(keyed_hash.cohort(task.seed, task.next_round, population, size))
    if None in found.values():
        found = downloads(population)
        taking_part = [client for client, given in found.items() if given is not None]
        drawn = {client: found[client] for client in keyed_hash.cohort(task.seed, task.next_round, taking_part, size)}
    given = {client: sets for client, sets in drawn.items() if sets is not None}
    return Cohort(index, population, given, frozenset(client for client, sets in found.items() if sets is None))


def open_round(
    federation: Federation, transaction: Transaction, task: Task, values: State, committed: int
) -> Round | None:
    """Open the round that follows so many committed ones; None: nobody is there to take part.

    Raises:
        MethodFailed, NothingToAggregate, StorageFull: The method gives no downloads.
    """
    number = task.next_round
    index, population, given, sitting_out = cohort(task, values, committed)
    if not population:
        return None  # goes on when somebody enrols
    phase = task.phases[index]
    needed = local_plans.download_names(phase.local_plan)
    downloads = Downloads(federation, transaction, task, task.round)
    bundles: dict[bytes, TaskBundle] = {}
    for client, downloaded in given.items():
        bundle = task.bundle_for(federation.clients[client], index)
        assert bundle is not None  # it is eligible
        bundles[client] = bundle
        if INITIAL in needed and INITIAL not in downloaded:
            downloaded = {**downloaded, INITIAL: federation.store.tensors(bundle.manifest.initial)}
        if missing := sorted(needed - downloaded.keys()):
            raise MethodFailed(f"the method's download lacks set {missing[0]!r}, which its local plan names")
        of_method(partial(downloads.add, client, downloaded))
    found = of_method(downloads.sets).items()
    members = {client: Member(bundle=bundles[client], sets=sets) for client, sets in found}
    _check_bases(federation, phase, members)
    now = federation.clock.now()
    transaction.execute(
        insert(schema.rounds),
        {
            "task": task.id,
            "number": number,
            "phase": index,
            "state": admin_pb2.ROUND_STATE_OPEN,
            "reason": "",
            "opened_at": now,
            "bytes_sent": 0,
            "population": b"".join(population),
            "sitting_out": json.dumps([client.hex() for client in sorted(sitting_out)]),
        },
    )
    if members:
        transaction.execute(
            insert(schema.members),
            [_member_row(task.id, number, client, member) for client, member in members.items()],
        )
    return Round(
        task=task.id,
        number=number,
        phase=index,
        state=admin_pb2.ROUND_STATE_OPEN,
        deadline=now + task.settings.deadline_s,
        members=members,
        sitting_out=sitting_out,
        population=population,
        pending=len(members),
    )


def _check_bases(federation: Federation, phase: Phase, members: Mapping[bytes, Member]) -> None:
    """See that what clients are to send differences from holds what they send."""
    name, seen = phase.local_plan.upload.base_set, set[tuple[bytes, bytes]]()
    for member in members.values() if name else ():
        layout = local_plans.upload_layout(phase.local_plan, member.bundle.manifest)
        digest = next((item.sha256 for item in member.sets if item.name == name), b"")
        if layout is None or (digest, member.bundle.id) in seen:
            continue
        seen.add((digest, member.bundle.id))
        if not digest or not downloads.holds(federation.store.tensors(digest), layout.specs):
            raise MethodFailed(f"the method's download lacks tensors in {name!r}, to which clients send differences")


def _member_row(task: int, number: int, client: bytes, member: Member) -> dict[str, object]:
    return {
        "task": task,
        "round": number,
        "client": client,
        "state": member.state,
        "bundle": member.bundle.id,
        "sets": downloads.to_json(member.sets),
        "reason": "",
        "bytes_received": 0,
        "num_examples": 0,
        "evaluations": "[]",
    }


def global_model(
    federation: Federation, transaction: Transaction, task: Task, ended: Round, values: State
) -> GlobalModel | None:
    """What evaluators evaluate after a round; None: the method has no global model.

    Raises:
        MethodFailed, NothingToAggregate, StorageFull: The method gives no download.
    """
    phase = task.phases[ended.phase]
    evaluated = local_plans.evaluation_only(phase.local_plan, with_kept=False)
    downloaded = of_method(lambda: task.method.download(phase, values, None))
    if evaluated is None or downloaded is None or local_plans.download_names(evaluated) - downloaded.keys():
        return None
    downloads = Downloads(federation, transaction, task, None, exact=True)
    of_method(lambda: downloads.add(NOBODY, downloaded))
    return GlobalModel(round=ended.number, phase=ended.phase, sets=of_method(downloads.sets)[NOBODY])
