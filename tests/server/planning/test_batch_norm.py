from typing import Any

import numpy as np
import pytest

from fedlens_proto.manifest import select
from fedlens_proto.v1 import assignment_pb2 as pb
from fedlens_server.engine.phases import check, evaluation_only, plan
from fedlens_server.engine.view import TaskBundle
from fedlens_server.planning.method import Method
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
    given = TaskSettings.model_validate({"method": method, "rounds": 2, "population": 2, **settings})
    taken = tuple(TaskBundle(bundle.manifest, bundle.parsed) for bundle in bundles or [network()])
    return plan(given, taken)[0]


def selected(selector: pb.TensorSelector) -> set[str]:
    return {tensor.name for tensor in select(network().parsed.tensors, selector)}


@pytest.mark.parametrize("method", SHARED)
def test_by_default_batch_norm_is_exchanged_like_all_else(method: str) -> None:
    for phase in made(method).phases:
        assert selected(phase.local_plan.upload.tensors) == SHARED[method]


@pytest.mark.parametrize("batch_norm", KEPT)
@pytest.mark.parametrize("method", SHARED)
def test_each_client_starts_from_its_own_and_sends_the_rest(method: str, batch_norm: str) -> None:
    for phase in made(method, batch_norm=batch_norm).phases:
        first, keep = phase.local_plan.start[0], phase.local_plan.keep[-1]
        check(phase.local_plan, network().parsed, phase.name)
        assert selected(first.tensors) == selected(keep.tensors) == KEPT[batch_norm]
        assert (first.source.kept, first.source.download, keep.set) == ("norms", "initial", "norms")
        assert selected(phase.local_plan.upload.tensors) == SHARED[method] - KEPT[batch_norm]


@pytest.mark.parametrize("batch_norm", KEPT)
@pytest.mark.parametrize("method", SHARED)
def test_the_server_aggregates_without_it_and_has_no_global_model(method: str, batch_norm: str) -> None:
    sent = SHARED[method] - KEPT[batch_norm]
    shared = {client: {name: weights(value)[name] for name in sent} for client, value in ((ALICE, 1.0), (BOB, 3.0))}
    chosen = made(method, batch_norm=batch_norm)

    state = after(chosen, begun(chosen), uploads(shared))

    assert state["global"].keys() == sent
    np.testing.assert_array_equal(state["global"]["conv.weight"], weights(2.0)["conv.weight"])
    for phase in chosen.phases:
        (download,) = (chosen.download(phase, state, ALICE) or {}).values()
        assert download.keys() == sent
        assert chosen.download(phase, state, None) is None


@pytest.mark.parametrize("method", ["local_only", "fedclassavg"])
def test_who_never_sends_it_keeps_it_as_before(method: str) -> None:
    plain, local = (made(method, batch_norm=setting) for setting in ("average", "local"))

    assert [phase.local_plan for phase in plain.phases] == [phase.local_plan for phase in local.phases]


def test_a_personal_evaluation_uses_what_a_client_keeps() -> None:
    (phase,) = made("fedavg", batch_norm="local_statistics").phases

    evaluated = evaluation_only(phase.local_plan, with_client_state=True)

    assert evaluated is not None
    assert evaluated.start == phase.local_plan.start


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
