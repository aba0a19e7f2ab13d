"""Opening a round: who takes part, and which sets everybody downloads."""

import json
from collections.abc import Mapping
from functools import partial

from sqlalchemy import insert

from fedlens_proto import keyed_hash
from fedlens_proto.v1 import admin_pb2, assignment_pb2
from fedlens_server import local_passes, mixtures
from fedlens_server.federation import BlobSets, Federation, GlobalModel, Member, Round, Task
from fedlens_server.method_calls import MethodFailed, of_method
from fedlens_server.methods import State, TensorSet
from fedlens_server.store import StoredTensors, Transaction, schema

Written = dict[int, tuple[TensorSet, bytes, int]]  # by `id` of a set, which is held so that it stays its own


def cohort(task: Task, committed: int) -> tuple[int, tuple[bytes, ...], list[bytes]]:
    """Index of the phase after so many committed rounds; who could take part in a round now, and who does."""
    population = tuple(sorted(task.eligible))
    index = task.phase_of(committed)
    size = task.phases[index].cohort or len(population)
    return index, population, keyed_hash.cohort(task.seed, task.next_round, population, size)


def download_sets(
    federation: Federation, transaction: Transaction, task: Task, downloaded: Mapping[str, TensorSet], written: Written
) -> BlobSets:
    """The downloaded sets by digest, ascending by name; those that are not stored yet are written and placed.

    Args:
        federation: Where they are stored.
        transaction: Which names new ones.
        task: Whose sets they are.
        downloaded: What the method gave.
        written: Sets written before; a caller that asks for many clients hands in the same.
    """
    sets = []
    for name, tensors in sorted(downloaded.items()):
        if isinstance(tensors, StoredTensors):
            digest, size = tensors.digest, tensors.size
        elif id(tensors) in written:
            _, digest, size = written[id(tensors)]
        elif (recipe := mixtures.recipe_of(tensors)) is not None:
            digest, size = mixtures.name(federation, transaction, task, recipe)
        else:
            with federation.store.incoming() as incoming:
                blob = federation.store.write_tensors(tensors, incoming)
                transaction.place(blob)
            digest, size = blob.digest, blob.size
            written[id(tensors)] = tensors, digest, size
        sets.append(assignment_pb2.BlobSet(name=name, sha256=digest, size=size))
    return tuple(sets)


def open_round(
    federation: Federation, transaction: Transaction, task: Task, values: State, committed: int
) -> Round | None:
    """Open the round that follows so many committed ones; None: nobody is there to take part.

    Raises:
        MethodFailed, NothingToAggregate, StorageFull: The method gives no downloads.
    """
    number = task.next_round
    index, population, chosen = cohort(task, committed)
    if not population:
        return None  # goes on when somebody enrols
    phase = task.phases[index]
    needed = local_passes.download_names(phase.local_pass)
    members: dict[bytes, Member] = {}
    written: Written = {}
    for client in chosen:
        downloaded = of_method(partial(task.method.download, task.method_phase(index), values, client))
        if downloaded is None:
            continue
        if missing := sorted(needed - downloaded.keys()):
            raise MethodFailed(f"the method's download lacks set {missing[0]!r}, which its local pass names")
        sets = of_method(partial(download_sets, federation, transaction, task, downloaded, written))
        bundle = task.bundle_for(federation.clients[client])
        assert bundle is not None  # it is eligible
        members[client] = Member(bundle=bundle, sets=sets)
    sitting_out = [client for client in chosen if client not in members]
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
            "sitting_out": json.dumps([client.hex() for client in sitting_out]),
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
        sitting_out=frozenset(sitting_out),
        population=population,
        pending=len(members),
    )


def _member_row(task: int, number: int, client: bytes, member: Member) -> dict[str, object]:
    return {
        "task": task,
        "round": number,
        "client": client,
        "state": member.state,
        "bundle": member.bundle.id,
        "sets": sets_json(member.sets),
        "reason": "",
        "bytes_received": 0,
        "photo_count": 0,
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
    evaluated = local_passes.evaluation_only(phase.local_pass.start, with_kept=False)
    downloaded = of_method(lambda: task.method.download(phase, values, None))
    if evaluated is None or downloaded is None or local_passes.download_names(evaluated) - downloaded.keys():
        return None
    sets = of_method(lambda: download_sets(federation, transaction, task, downloaded, {}))
    return GlobalModel(round=ended.number, phase=ended.phase, sets=sets)


def sets_json(sets: BlobSets) -> str:
    """As kept in the database."""
    return json.dumps({item.name: item.sha256.hex() for item in sets}, sort_keys=True)
