"""The clients of a round that is to open or takes more, and what each of them downloads."""

from collections.abc import Iterable, Mapping
from functools import partial
from itertools import product
from typing import NamedTuple

from fedlens_proto import keyed_hash, plans
from fedlens_proto.manifest import INITIAL
from fedlens_proto.v1 import assignment_pb2
from fedlens_server.engine.cohorts.downloads import Digests, Downloads, holds
from fedlens_server.engine.cohorts.members import Member, Round
from fedlens_server.engine.method_calls import MethodFailed, of_method
from fedlens_server.engine.task import Task
from fedlens_server.engine.view import Federation
from fedlens_server.planning.method import State, TensorSet
from fedlens_server.store import Transaction


class Cohort(NamedTuple):
    """The clients of a round that is to open.

    Attributes:
        phase: Index of the round's phase.
        population: Eligible clients, ascending by id.
        values: The method's state that the downloads are of.
        downloads: By member, ascending by id, the sets that the method gives it.
        sitting_out: Clients to whom the method gives nothing in this phase, of those that it was asked about.
        digests: Of computed blobs among the downloads, as far as they have been found.
    """

    phase: int
    population: tuple[bytes, ...]
    values: State
    downloads: Mapping[bytes, Mapping[str, TensorSet]]
    sitting_out: frozenset[bytes]
    digests: Digests


def eligible(federation: Federation, task: Task) -> tuple[bytes, ...]:
    """The clients that can take part in a task, ascending by id; takes a moment for each enrolled client."""
    return tuple(client for client in federation.clients.ids(task.may_train) if client not in task.exhausted)


def everybody(federation: Federation, task: Task, population: Iterable[bytes]) -> tuple[bytes, ...]:
    """Those that could be drawn for a round and those that have taken part as often as they may, ascending by id."""
    known = ((client, federation.clients.get(client)) for client in task.exhausted.copy())
    often = (client for client, found in known if found is not None and task.may_train(found.profile))
    return tuple(sorted({*population, *often}))


def draw(federation: Federation, task: Task, values: State, committed: int) -> Cohort:
    """Draw the cohort of the round that follows so many committed ones.

    No client is drawn that sits the phase out: where many do, rounds would have too few members, or none.

    Raises:
        MethodFailed, NothingToAggregate, StorageFull: The method gives no downloads.
    """
    population = eligible(federation, task)
    index = task.phase_of(committed)
    phase = task.method_phase(index)
    size = task.phases[index].cohort or len(population)

    def given(clients: Iterable[bytes]) -> dict[bytes, Mapping[str, TensorSet] | None]:
        return {client: of_method(partial(task.method.download, phase, values, client)) for client in clients}

    drawn = found = given(keyed_hash.cohort(task.seed, task.next_round, population, size))
    if None in found.values():
        found = given(population)
        taking_part = [client for client, sets in found.items() if sets is not None]
        drawn = {client: found[client] for client in keyed_hash.cohort(task.seed, task.next_round, taking_part, size)}
    members = {client: sets for client, sets in drawn.items() if sets is not None}
    sitting_out = frozenset(client for client, sets in found.items() if sets is None)
    return Cohort(index, population, values, members, sitting_out, {})


def members_of(
    federation: Federation,
    transaction: Transaction,
    task: Task,
    cohort: Cohort,
    before: Round | None,
    encoded: dict[bytes, assignment_pb2.BlobSet],
) -> dict[bytes, Member]:
    """New members of a round, with their downloads encoded.

    Args:
        federation: Holds the clients and the store.
        transaction: Takes the downloads.
        task: Of the round.
        cohort: The members and the sets that the method gives them.
        before: The round whose downloads clients may still hold.
        encoded: Downloads that are there already, as in `Round.encoded`; new ones are added.

    Raises:
        MethodFailed, NothingToAggregate, StorageFull: The method's downloads cannot be used.
    """
    plan = task.phases[cohort.phase].plan
    needed = {each.id: plans.downloads(plan, each.manifest) for each in task.bundles_of(cohort.phase)}
    named = {each.id: plans.all_downloads(plan, each.manifest) for each in task.bundles_of(cohort.phase)}
    made = Downloads(federation, transaction, task, before, cohort.digests, encoded)
    bundles: dict[bytes, bytes] = {}
    for client, downloaded in cohort.downloads.items():
        bundle = task.bundle_for(federation.clients[client].profile, cohort.phase)
        assert bundle is not None  # it is eligible
        bundles[client] = bundle.id
        if INITIAL in named[bundle.id] and INITIAL not in downloaded:
            downloaded = {**downloaded, INITIAL: federation.store.tensors(bundle.manifest.initial)}
        if missing := sorted(needed[bundle.id] - downloaded.keys()):
            raise MethodFailed(f"the method's download lacks set {missing[0]!r}, which its local plan names")
        of_method(partial(made.add, client, downloaded))
    members = {
        client: Member(bundle=bundles[client], phase=cohort.phase, sets=sets)
        for client, sets in of_method(made.sets).items()
    }
    _check_bases(federation, task, plan, members)
    return members


def _check_bases(
    federation: Federation, task: Task, plan: assignment_pb2.LocalPlan, members: Mapping[bytes, Member]
) -> None:
    """Check that the sets to which clients send differences hold the tensors that they send."""
    seen = set[tuple[str, bytes, bytes]]()
    based = [upload for upload in plan.uploads if upload.base]
    for member, upload in product(members.values(), based):
        digest = next(item.sha256 for item in member.sets if item.name == upload.base)
        if (upload.name, digest, member.bundle) in seen:
            continue
        seen.add((upload.name, digest, member.bundle))
        layout = plans.upload_layout(plan, upload, task.bundle(member.bundle).manifest)
        if not holds(federation.store.tensors(digest), layout.specs):
            raise MethodFailed(
                f"the method's download lacks tensors in {upload.base!r}, to which clients send differences"
            )
