import numpy as np
import pytest

from fedlens_proto.v1 import assignment_pb2
from fedlens_server.planning.task_settings import SettingsError
from tests.server.bundles import TinyBundle, tiny_bundle
from tests.server.methods.tasks import ALICE, BOB, after, begun, made, update, with_reference
from tests.server.networks import network, weights

EXTRACTOR = ["bn.batches", "bn.mean", "bn.weight", "conv.weight"]


def extractor(value: float) -> dict[str, np.ndarray]:
    return {name: tensor for name, tensor in weights(value).items() if name in EXTRACTOR}


def test_the_extractor_is_shared_and_the_classifier_kept() -> None:
    (phase,) = made("fedper").phases

    shared, own = phase.local_plan.start
    (keep,) = phase.local_plan.keep
    assert shared.source == assignment_pb2.SetSource(download="global")
    assert own.source == assignment_pb2.SetSource(kept="classifier", download="initial")
    assert (keep.set, keep.tensors) == ("classifier", own.tensors)
    assert phase.local_plan.upload.tensors == shared.tensors


def test_extractors_are_averaged_by_photos_and_no_classifier_is_known() -> None:
    method = made("fedper")

    state = after(method, begun(method), [update(ALICE, extractor(2.0), 1), update(BOB, extractor(6.0), 3)])

    assert sorted(state["global"]) == EXTRACTOR
    # (1 * 2 + 3 * 6) / 4; of the counter the maximum
    np.testing.assert_array_equal(state["global"]["bn.mean"], [5.0, 5.0])
    assert state["global"]["bn.batches"] == 6


def test_there_is_no_global_model() -> None:
    method = made("fedper")
    state = begun(method)

    assert method.download(method.phases[0], state, None) is None
    assert method.download(method.phases[0], state, ALICE) == {"global": state["global"]}


@pytest.mark.parametrize("name", ["fedper", "fedrep"])
@pytest.mark.parametrize(
    ("bundle", "message"),
    [
        (tiny_bundle(), r"manifests\[0\]: found model 'tiny' without layers before the classifier, must be one with"),
        (
            with_reference(network(), "proximal", sorted(weights(0))),
            r"manifests\[0\].objective: found 'proximal', which wants reference 'global', must be one without",
        ),
    ],
)
def test_what_does_not_fit_is_refused_by_name(name: str, bundle: TinyBundle, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        made(name, bundle)


def test_extractors_that_differ_are_refused() -> None:
    with pytest.raises(SettingsError, match=r"manifests\[1\]: found a bundle with other tensors"):
        made("fedper", network(), network(width=5))
