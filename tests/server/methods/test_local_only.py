from fedlens_proto.v1 import assignment_pb2
from tests.server.bundles import tiny_bundle
from tests.server.methods.tasks import ALICE, after, begun, made, update, with_reference
from tests.server.networks import network


def test_a_client_goes_on_from_its_own_model_and_sends_nothing() -> None:
    (phase,) = made("local_only").phases

    (start,) = phase.local_plan.start
    assert start.source == assignment_pb2.SetSource(kept="model", download="initial")
    assert [keep.set for keep in phase.local_plan.keep] == ["model"]
    assert not phase.local_plan.HasField("upload")
    assert not phase.local_plan.statistics


def test_the_server_knows_nothing() -> None:
    method = made("local_only")
    state = begun(method)

    assert after(method, state, [update(ALICE, {})]) == {}
    assert method.download(method.phases[0], state, ALICE) == {}
    assert method.download(method.phases[0], state, None) is None


def test_models_may_differ_in_all_but_the_classes() -> None:
    made("local_only", network(), tiny_bundle(features=7))


def test_an_objective_that_compares_with_the_shared_model_gets_the_clients_own() -> None:
    (phase,) = made("local_only", with_reference(network(), "proximal", ["fc.bias"])).phases

    assert list(phase.local_plan.references) == [assignment_pb2.ReferenceBinding(name="global", start=True)]
