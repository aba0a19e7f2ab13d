from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fedlens_proto.manifest import select
from fedlens_proto.v1 import assignment_pb2 as pb
from fedlens_proto.v1 import manifest_pb2
from fedlens_server.engine.phases import plan
from fedlens_server.engine.task import TaskBundle
from fedlens_server.planning import local_plans
from fedlens_server.planning.batch_norm import with_batch_norm
from fedlens_server.planning.local_plans import (
    START,
    assemble,
    bind,
    derive,
    keep,
    rule,
    source,
    train,
    upload,
    upload_table,
)
from fedlens_server.planning.method import Method, Phase, TaskPlan
from fedlens_server.planning.task_settings import SettingsError, TaskSettings
from tests.server.bundles import TinyBundle
from tests.server.concatenated import concatenated
from tests.server.fakes import ALICE, BOB
from tests.server.methods.tasks import ALL, PROXIMAL, after, begun, uploads, with_reference
from tests.server.networks import network, weights

STATISTICS = {"bn.batches", "bn.mean"}
KEPT = {"local_statistics": STATISTICS, "local": STATISTICS | {"bn.weight"}}
SHARED = {"fedavg": set(ALL), "fedper": set(ALL) - {"fc.bias", "fc.weight"}, "pfedsim": set(ALL)}


def made(method: str, *bundles: TinyBundle, **settings: Any) -> Method:
    return planned(method, *bundles, **settings)[0]


def planned(method: str, *bundles: TinyBundle, **settings: Any) -> tuple[Method, tuple[Phase, ...]]:
    given = task(method=method, **settings).settings
    taken = tuple(TaskBundle(bundle.manifest, bundle.parsed) for bundle in bundles or [network()])
    return plan(given, taken)[:2]


def selected(selector: pb.TensorSelector) -> set[str]:
    return {tensor.name for tensor in select(network().parsed.tensors, selector)}


@pytest.mark.parametrize("method", SHARED)
def test_by_default_batch_norm_is_exchanged_like_all_else(method: str) -> None:
    for phase in made(method).phases:
        assert [selected(upload.tensors) for upload in phase.plan.uploads] == [SHARED[method]]


@pytest.mark.parametrize("batch_norm", KEPT)
@pytest.mark.parametrize("method", SHARED)
def test_each_client_starts_from_its_own_and_sends_the_rest(method: str, batch_norm: str) -> None:
    for phase in made(method, batch_norm=batch_norm).phases:
        first, keep, (upload,) = phase.plan.instructions[0].assemble.rules[0], phase.plan.keeps[-1], phase.plan.uploads
        assert selected(first.tensors) == selected(keep.tensors) == KEPT[batch_norm]
        assert first.source == pb.Source(state="norms", download="initial")
        assert (keep.state, keep.value) == ("norms", upload.value)
        assert selected(upload.tensors) == SHARED[method] - KEPT[batch_norm]


@pytest.mark.parametrize("batch_norm", KEPT)
@pytest.mark.parametrize("method", SHARED)
def test_the_server_aggregates_without_it_and_has_no_global_model(method: str, batch_norm: str) -> None:
    sent = SHARED[method] - KEPT[batch_norm]
    shared = {client: {name: weights(value)[name] for name in sent} for client, value in ((ALICE, 1.0), (BOB, 3.0))}
    chosen = made(method, batch_norm=batch_norm)

    state = after(chosen, begun(chosen), uploads(shared))

    assert state.shared["global"].keys() == sent
    np.testing.assert_array_equal(state.shared["global"]["conv.weight"], weights(2.0)["conv.weight"])
    for phase in chosen.phases:
        (download,) = (chosen.download(phase, state, ALICE) or {}).values()
        assert download.keys() == sent
        assert chosen.download(phase, state, None) is None


@pytest.mark.parametrize("method", ["local_only", "fedclassavg"])
def test_who_never_sends_it_keeps_it_as_before(method: str) -> None:
    plain, local = (made(method, batch_norm=setting) for setting in ("average", "local"))

    assert [phase.plan for phase in plain.phases] == [phase.plan for phase in local.phases]


def test_a_personal_evaluation_uses_what_a_client_keeps() -> None:
    training, evaluation = planned("fedavg", batch_norm="local_statistics", personal_evaluation=True)[1]

    assert [each.tensors.kinds for each in evaluation.model_rules] == [[manifest_pb2.TENSOR_KIND_BUFFER], []]
    assert evaluation.model_rules == training.model_rules


def test_weights_that_come_from_a_clients_own_model_have_its_batch_norm() -> None:
    both = plan_of_two_models()
    method = replace(made("fedavg"), phases=(Phase(name="train", rounds=1, cohort=None, plan=both),))

    (phase,) = with_batch_norm(lambda _: method, task(batch_norm="local")).phases

    shared, own = (phase.plan.instructions[k].assemble.rules[0].source for k in (0, 2))
    assert shared == pb.Source(state="norms", download="initial")
    assert own == pb.Source(state="personal", download="initial")


def test_a_table_is_uploaded_as_before() -> None:
    settings, table = task().settings, upload_table("sums", "sums")
    tabled = local_plans.plan(
        assemble(START, rule(source(download="global"))),
        train(settings),
        derive("sums", "sums", bind("model", source(value="trained")), rows=pb.ROWS_TRAIN),
        uploads=[upload(settings), table],
    )
    method = replace(made("fedavg"), phases=(Phase(name="train", rounds=1, cohort=None, plan=tabled),))

    (phase,) = with_batch_norm(lambda _: method, task(batch_norm="local")).phases

    assert phase.plan.uploads[1] == table
    assert [keep.value for keep in phase.plan.keeps] == ["trained"]


def plan_of_two_models() -> pb.LocalPlan:
    """Train the downloaded model, and a model of the client's own, of which nothing is sent."""
    settings = task().settings
    return local_plans.plan(
        assemble(START, rule(source(download="global"))),
        train(settings),
        assemble("mine", rule(source(state="personal", download="global"))),
        train(settings, "trained_too", start="mine"),
        keeps=[keep("personal", "trained_too")],
        uploads=[upload(settings)],
    )


def task(**settings: Any) -> TaskPlan:
    given = TaskSettings.model_validate({"method": "fedavg", "rounds": 2, "population": 2, **settings})
    return TaskPlan(settings=given, manifests=(network().parsed,))


@pytest.mark.parametrize(
    ("method", "bundles", "batch_norm", "message"),
    [
        (
            "fedconcat",
            (network(), concatenated(2)),
            "local",
            r'"local" with a bundle that concatenates extractors, must',
        ),
        ("fedavg", (concatenated(2),), "local", "manifests: found only bundles that concatenate"),
        ("fedprox", (PROXIMAL,), "local", r"'proximal', which compares BatchNorm's weights, must be \"average\" or"),
    ],
)
def test_what_cannot_be_is_refused_by_name(
    method: str, bundles: tuple[TinyBundle, ...], batch_norm: str, message: str
) -> None:
    with pytest.raises(SettingsError, match=message):
        made(method, *bundles, batch_norm=batch_norm, **({"options": {"clusters": 2}} if method == "fedconcat" else {}))


def test_a_model_without_batch_norm_is_refused() -> None:
    bundle = with_reference(network(), "proximal", ["fc.weight"])
    manifest = bundle.parsed
    kept = [tensor for tensor in manifest.tensors if not tensor.name.startswith("bn")]
    del manifest.tensors[:]
    manifest.tensors.extend(kept)
    without = TinyBundle(manifest.SerializeToString(), bundle.parts, bundle.initial)

    with pytest.raises(SettingsError, match=r'batch_norm: found "local", must be "average": no bundle has BatchNorm'):
        made("fedavg", without, batch_norm="local")
