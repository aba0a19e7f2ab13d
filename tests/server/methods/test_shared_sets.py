"""Methods in which all clients download one set, and what the others keep, compare with and train."""

from typing import Any

import numpy as np
import pytest

from fedlens_proto.v1 import assignment_pb2 as pb
from fedlens_server.planning.method import State
from tests.server.bundles import TinyBundle, tiny_bundle
from tests.server.fakes import ALICE, BOB
from tests.server.methods.programs import Extended
from tests.server.methods.tasks import ALL, CLASSIFIER, EXTRACTOR, PROXIMAL, SUPCON, after, begun, changed, made, update
from tests.server.networks import network, weights


def plan(method: str, *bundles: TinyBundle, **settings: Any) -> pb.LocalPlan:
    """The local plan of the only phase."""
    (phase,) = made(method, *bundles, **settings).phases
    return phase.plan


def rules(plan: pb.LocalPlan) -> list[pb.Rule]:
    """The rules of the weights that the plan starts from."""
    return list(plan.instructions[0].assemble.rules)


@pytest.mark.parametrize(
    ("name", "bundle", "options", "shared", "is_model"),
    [
        ("fedprox", PROXIMAL, {}, ALL, True),
        ("fedper", network(), {}, EXTRACTOR, False),
        ("fedclassavg", SUPCON, {}, CLASSIFIER, False),
        ("fedclassavg", SUPCON, {"weight": True}, ALL, True),
    ],
)
def test_the_set_is_averaged_by_photos_and_evaluated_if_it_is_a_whole_model(
    name: str, bundle: TinyBundle, options: dict[str, Any], shared: list[str], is_model: bool
) -> None:
    method = made(name, bundle, options=options)
    (phase,), first = method.phases, begun(method, 7.0)
    sent = [{tensor: weights(value)[tensor] for tensor in shared} for value in (2.0, 6.0)]

    state = after(method, first, [update(ALICE, sent[0], 1), update(BOB, sent[1], 3)])

    assert sorted(first.shared["global"]) == sorted(state.shared["global"]) == shared
    expected = weights(5.0) | {"bn.batches": np.array(6)}  # (1 * 2 + 3 * 6) / 4; of the counter the maximum
    for tensor in shared:
        np.testing.assert_array_equal(state.shared["global"][tensor], expected[tensor])
    assert method.download(phase, state, ALICE) == {"global": state.shared["global"]}
    assert method.download(phase, state, None) == ({"global": state.shared["global"]} if is_model else None)
    (sent_back,) = phase.plan.uploads
    assert sent_back.HasField("tensors") == bool(phase.plan.keeps) == (not is_model)


@pytest.mark.parametrize(
    ("name", "bundle", "kept"), [("fedper", network(), "classifier"), ("fedclassavg", SUPCON, "extractor")]
)
def test_what_is_not_shared_is_kept(name: str, bundle: TinyBundle, kept: str) -> None:
    found = plan(name, bundle)

    shared, own = rules(found)
    assert shared.source == pb.Source(download="global")
    assert own.source == pb.Source(state=kept, download="initial")
    assert list(found.keeps) == [pb.Keep(state=kept, value="trained", tensors=own.tensors)]
    assert [upload.tensors for upload in found.uploads] == [shared.tensors]


@pytest.mark.parametrize(
    ("name", "bundle", "source"),
    [("fedprox", PROXIMAL, pb.Source(value="start")), ("fedclassavg", SUPCON, pb.Source(download="global"))],
)
def test_the_reference_is_what_was_sent(name: str, bundle: TinyBundle, source: pb.Source) -> None:
    train = plan(name, bundle, hyper={"mu": 0.5}).instructions[1].train

    assert list(train.bindings) == [pb.Binding(reference="global", source=source)]
    assert list(train.hyper_values) == [pb.HyperValue(name="mu", value=0.5)]


def test_without_training_together_a_client_goes_on_from_its_own_model_and_the_server_knows_nothing() -> None:
    method, found = made("local_only"), plan("local_only", PROXIMAL)
    (phase,), state = method.phases, begun(method)

    assert rules(found) == [pb.Rule(source=pb.Source(state="model", download="initial"))]
    assert list(found.instructions[1].train.bindings) == [
        pb.Binding(reference="global", source=pb.Source(value="start"))
    ]
    assert list(found.keeps) == [pb.Keep(state="model", value="trained")]
    assert not found.uploads and not found.statistics
    assert after(method, state, [update(ALICE)]) == state == State()
    assert method.download(phase, state, ALICE) == {}
    assert method.download(phase, state, None) is None


def test_alone_an_optional_reference_is_left_out_and_labels_are_counted() -> None:
    found = Extended("dynamic")
    for reference in ("global", "dual"):
        found.refer(found.step, reference, {"fc.bias": (2,)}, optional=reference == "dual")
    found.refer(found.step, "label_counts", {"label_counts": (2,)})

    assert list(plan("local_only", found.bundle()).instructions[1].train.bindings) == [
        pb.Binding(reference="global", source=pb.Source(value="start")),
        pb.Binding(reference="label_counts", source=pb.Source(label_counts=True)),
    ]


def other_extractor(rows: int = 2) -> TinyBundle:
    """A network with another convolution; with other than two rows, another classifier too."""
    tensors = list(SUPCON.parsed.tensors)
    for tensor in tensors:
        if tensor.name == "conv.weight":
            tensor.shape[:] = [2, 17]
        if tensor.name == "fc.bias":
            tensor.shape[:] = [rows]
    return changed(SUPCON, tensors=tensors, model="other")


def test_models_that_are_not_averaged_may_differ() -> None:
    assert len(made("local_only", network(), tiny_bundle(features=7)).phases) == 1
    assert len(made("fedclassavg", SUPCON, other_extractor()).phases) == 1


def test_a_model_that_is_all_classifier_keeps_nothing() -> None:
    found = plan("fedclassavg", tiny_bundle())

    assert (len(rules(found)), len(found.keeps)) == (1, 0)
