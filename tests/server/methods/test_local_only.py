import pytest

from fedlens_proto.v1 import assignment_pb2
from fedlens_server.planning.task_settings import SettingsError
from tests.server.bundles import tiny_bundle
from tests.server.methods.tasks import ALICE, after, begun, made, plan, update, with_reference
from tests.server.networks import network


def test_a_client_goes_on_from_its_own_model_and_sends_nothing() -> None:
    task = plan("local_only")
    (phase,) = made(task).phases(task)

    (start,) = phase.local_plan.start
    assert start.source == assignment_pb2.SetSource(kept="model", download="initial")
    assert [keep.set for keep in phase.local_plan.keep] == ["model"]
    assert not phase.local_plan.HasField("upload")
    assert not phase.local_plan.statistics


def test_the_server_knows_nothing() -> None:
    task = plan("local_only")
    method = made(task)
    state = begun(method, task)

    assert after(method, task, state, [update(ALICE, {})]) == {}
    assert method.download(method.phases(task)[0], state, ALICE) == {}
    assert method.download(method.phases(task)[0], state, None) is None


def test_models_may_differ_in_all_but_the_classes() -> None:
    made(plan("local_only", network(), tiny_bundle(features=7)))


def test_an_objective_that_compares_with_the_shared_model_gets_the_clients_own() -> None:
    task = plan("local_only", with_reference(network(), "proximal", ["fc.bias"]))
    (phase,) = made(task).phases(task)

    assert list(phase.local_plan.references) == [assignment_pb2.ReferenceBinding(name="global", start=True)]


def test_options_are_refused() -> None:
    with pytest.raises(SettingsError, match=r"options.weight: found set, must be left out: local_only has no options"):
        made(plan("local_only", options={"weight": True}))
