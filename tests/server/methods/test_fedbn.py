import numpy as np
import pytest

from fedlens_proto.v1 import manifest_pb2
from fedlens_server.methods.fedavg import average
from fedlens_server.planning.task_settings import SettingsError
from tests.server.bundles import tiny_bundle
from tests.server.fakes import ALICE, BOB
from tests.server.methods.golden import cases
from tests.server.methods.programs import check_plans
from tests.server.methods.tasks import after, begun, changed, made, update
from tests.server.networks import network, weights

OWN = {"norm", "buffer"}


def test_the_worked_cases() -> None:
    for case in cases("fedbn"):
        stays = [str(kind) in OWN for kind in case.inputs["kinds"]]
        case.check("stays_on_the_client", np.array(stays, np.int64))
        for i, own in enumerate(stays):
            assert own == (f"tensor_{i}" not in case.outputs)
            if not own:
                found = average(list(case.inputs[f"tensor_{i}"]), case.inputs["n"].tolist())
                case.check(f"tensor_{i}", found)


def test_it_is_fedavg_with_batch_norm_that_stays_with_the_clients() -> None:
    method, other = made("fedbn"), made("fedavg")

    check_plans(method, network())
    plan = method.phases[0].plan
    assert [each.state for each in plan.keeps] == ["norms"]
    state = after(method, begun(method), [update(ALICE, weights(1.0), 1), update(BOB, weights(4.0), 2)])
    assert sorted(state.shared["global"]) == ["conv.weight", "fc.bias", "fc.weight"]
    assert state.shared["global"]["fc.bias"][0] == 3.0
    assert method.download(method.phases[0], state, None) is None
    assert other.download(other.phases[0], begun(other), None) is not None


def test_on_a_whole_model_without_batch_norm_it_is_fedavg() -> None:
    method, other = made("fedbn", tiny_bundle()), made("fedavg", tiny_bundle())

    assert method.phases == other.phases
    assert "fedbn is fedavg in this task" in method.notice
    state = after(method, begun(method), [update(ALICE, weights(1.0), 1), update(BOB, weights(4.0), 2)])
    assert state.shared["global"]["fc.bias"][0] == 3.0
    assert sorted(method.download(method.phases[0], state, None) or {}) == ["global"]


def test_a_frozen_backbone_without_batch_norm_and_the_tasks_own_setting_are_refused() -> None:
    frozen = changed(tiny_bundle(), bundle_class=manifest_pb2.BUNDLE_CLASS_FROZEN_BACKBONE)
    with pytest.raises(SettingsError, match=r"manifests\[0\]: found model 'tiny' without BatchNorm .*; else use"):
        made("fedbn", frozen)
    with pytest.raises(SettingsError, match='batch_norm: found "local", must be left out: with fedbn'):
        made("fedbn", tiny_bundle(), batch_norm="local")
    with pytest.raises(SettingsError, match='batch_norm: found "local_statistics", must be left out: with fedbn'):
        made("fedbn", batch_norm="local_statistics")
