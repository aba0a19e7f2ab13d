import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from fedlens_proto.v1 import manifest_pb2
from fedlens_server.engine import tasks
from fedlens_server.errors import Unknown
from fedlens_server.methods.arithmetic import inferred_labels
from fedlens_server.methods.arithmetic.inferred_labels import mean_softmax
from fedlens_server.methods.fedconcat import concatenate, for_task, unweighted_mean
from fedlens_server.planning.method import Method, MethodState, NothingToAggregate, TaskPlan, TensorSet, Update
from fedlens_server.planning.task_settings import SettingsError, TaskSettings
from tests.server.bundles import TinyBundle
from tests.server.concatenated import concatenated
from tests.server.fakes import Bench, client_ids, update_of
from tests.server.methods import golden
from tests.server.methods.tasks import tools, update
from tests.server.networks import network, weights

IDS = client_ids(4)
ALICE, BOB, CAROL, DAVE = IDS
SETTINGS: dict[str, Any] = {
    "method": "fedconcat",
    "rounds": 6,
    "population": 4,
    "options": {"clusters": 2, "extractor_rounds": 2, "classifier_rounds": 3},
}


def with_onnx(bundle: TinyBundle) -> manifest_pb2.Manifest:
    manifest = bundle.parsed
    for program in manifest.programs:
        program.files.append(
            manifest_pb2.ProgramFile(format=manifest_pb2.PROGRAM_FORMAT_ONNX, sha256=program.files[0].sha256)
        )
    return manifest


def parsed(*bundles: TinyBundle) -> list[manifest_pb2.Manifest]:
    return [bundle.parsed for bundle in bundles]


def method(manifests: Sequence[manifest_pb2.Manifest] | None = None, **changed: Any) -> Method:
    options = {**SETTINGS["options"], **changed.pop("options", {})}
    kept = {name: value for name, value in options.items() if value is not None}
    given = TaskSettings.model_validate({**SETTINGS, **changed, "options": kept})
    return for_task(TaskPlan(settings=given, manifests=tuple(manifests or parsed(network(), concatenated(3)))))


def inferring(**options: Any) -> Method:
    manifests = [with_onnx(network()), *parsed(concatenated(3))]
    return method(manifests, options={"labels": "inferred", **options})


def counted(counts: Mapping[bytes, tuple[int, int]]) -> list[Update]:
    return [update(client, photos=sum(found), class_counts=found) for client, found in counts.items()]


class Run:
    """The method through its phases, as the round engine calls it."""

    def __init__(self, method: Method, infer: Any = None) -> None:
        self.method = method
        classifier = {"classifier.bias": np.float32([5, 5]), "classifier.weight": np.full((2, 6), 5, np.float32)}
        self.tools = tools(7.0, initial_concatenated=classifier, infer=infer, photo_shape=(3, 2, 2))
        self.state = method.begin(method.phases[0], {}, self.tools)

    def round(self, phase: int, updates: Sequence[Update]) -> MethodState:
        self.state = self.method.aggregate(self.method.phases[phase], self.state, updates, self.tools)
        return self.state

    def begin(self, phase: int) -> MethodState:
        self.state = self.method.begin(self.method.phases[phase], self.state, self.tools)
        return self.state

    def download(self, phase: int, client: bytes | None) -> Mapping[str, TensorSet] | None:
        return self.method.download(self.method.phases[phase], self.state, client)

    def clusters(self) -> list[int | None]:
        """Each client's."""
        return [self.state.get(f"clients/{client.hex()}/cluster") for client in IDS]

    def clustered(self) -> "Run":
        """Alice and Carol are alike, and Bob and Dave."""
        self.round(0, counted({ALICE: (9, 1), BOB: (1, 9), CAROL: (8, 2), DAVE: (20, 180)}))
        self.begin(1)
        return self


def value(tensors: TensorSet) -> float:
    """Of sets of `weights`."""
    return float(tensors["conv.weight"][0, 0])


def test_the_worked_cases_of_concatenated_classifiers_come_out() -> None:
    for case in golden.cases("fedconcat_08"):
        weight, bias = concatenate(list(case.inputs["weight"]), list(case.inputs["bias"]))

        case.check("weight", weight)
        case.check("bias", bias)
        rows = np.concatenate(list(case.inputs["features"]), 1)
        case.check("logits", rows @ weight.T + bias)


def test_one_cluster_alone_keeps_its_classifier() -> None:
    weight, bias = concatenate([np.float32([[1, 2]])], [np.float32([3])])

    np.testing.assert_array_equal(weight, [[1, 2]])
    np.testing.assert_array_equal(bias, [3])
    assert (weight.dtype, bias.dtype) == (np.float32, np.float32)


def test_the_last_phases_mean_does_not_weigh() -> None:
    np.testing.assert_array_equal(unweighted_mean([np.float32([1, 2]), np.float32([3, 8])]), [2, 5])


def test_inferred_labels_are_the_mean_of_softmax_not_softmax_of_the_mean() -> None:
    # softmax (0, log 3) = (1/4, 3/4) and (log 9, 0) = (9/10, 1/10): mean (0.575, 0.425).
    found = mean_softmax(np.log([[1, 3], [9, 1]]))

    np.testing.assert_allclose(found, [0.575, 0.425], rtol=1e-12)


def test_huge_logits_give_no_infinity() -> None:
    np.testing.assert_array_equal(mean_softmax(np.float32([[1e30, -1e30]])), [1, 0])


def test_the_phases_are_the_papers() -> None:
    cluster, extract, last = method(cohort=3).phases

    assert [(p.name, p.rounds, p.cohort, p.concatenated) for p in (cluster, extract, last)] == [
        ("cluster", 1, None, False),
        ("extract", 2, 3, False),
        ("concatenate", 3, 3, True),
    ]
    assert not cluster.local_plan.stages and not cluster.local_plan.HasField("upload")
    assert [ask.WhichOneof("kind") for ask in cluster.local_plan.statistics] == ["class_counts"]
    assert [stage.epochs for stage in extract.local_plan.stages] == [1]
    assert [stage.steps for stage in last.local_plan.stages] == [3]
    assert list(last.local_plan.extractors) == ["cluster_0", "cluster_1", "cluster_2"]
    assert not extract.local_plan.statistics and not last.local_plan.statistics


def test_the_last_phase_leaves_out_what_its_bundle_has_no_hyper_parameter_for() -> None:
    manifests = parsed(network(), concatenated(3))
    del manifests[1].hyper_parameters[1:]

    phases = method(manifests, hyper={"lr_classifier": 0.5, "momentum": 0.25}).phases

    names = [[value.name for value in phase.local_plan.stages[0].hyper_values] for phase in phases[1:]]
    assert names == [["lr_classifier", "momentum"], ["lr_classifier"]]


def test_noisy_labels_are_asked_for_with_epsilon_and_nothing_exact_beside_them() -> None:
    phases = method(options={"labels": "noisy", "epsilon": 2}).phases

    assert [ask.label_distribution.epsilon for ask in phases[0].local_plan.statistics] == [2.0]
    assert not any(p.local_plan.evaluation.at_start or p.local_plan.evaluation.at_end for p in phases)


def test_inferring_trains_and_uploads_in_the_first_round_and_asks_nothing() -> None:
    first = inferring().phases[0].local_plan

    assert len(first.stages) == 1 and first.HasField("upload") and not first.statistics


def test_clients_with_like_labels_share_a_cluster_which_starts_from_the_initial_model() -> None:
    run = Run(method()).clustered()

    assert run.clusters() == [0, 1, 0, 1]
    assert run.state["clusters"] == 2
    assert [value(run.state[f"cluster_{j}"]) for j in range(2)] == [7.0, 7.0]
    assert "global" not in run.state


def test_noisy_rows_are_clustered_as_they_come() -> None:
    run = Run(method(options={"labels": "noisy", "epsilon": 1}))
    noisy = {ALICE: (1.9, -0.8), BOB: (-0.7, 1.4), CAROL: (1.7, -0.9), DAVE: (-0.6, 1.2)}

    run.round(0, [update(client, label_distribution=found) for client, found in noisy.items()])

    assert run.clusters() == [0, 1, 0, 1]


def sure_of(tensors: TensorSet, photos: np.ndarray) -> np.ndarray:
    """Logits of a model that answers with its own classifier's bias, whatever the photo."""
    return np.tile(np.asarray(tensors["fc.bias"]), (len(photos), 1)).astype(np.float32)


def biased(number: float, *bias: float) -> dict[str, Any]:
    return {**weights(number), "fc.bias": np.float32(bias)}


def test_clients_are_grouped_by_how_their_models_answer_and_all_clusters_start_from_their_mean() -> None:
    run = Run(inferring(random_images=10), sure_of)
    sent = {ALICE: biased(1, 3, 0), BOB: biased(2, 0, 3), CAROL: biased(3, 3, 1), DAVE: biased(4, 0, 2)}

    run.round(0, [update(client, found, photos=30 if client == DAVE else 10) for client, found in sent.items()])
    run.begin(1)

    assert run.clusters() == [0, 1, 0, 1]
    # (10 * 1 + 10 * 2 + 10 * 3 + 30 * 4) / 60 = 3
    assert [value(run.state[f"cluster_{j}"]) for j in range(2)] == [3.0, 3.0]


def test_a_client_whose_model_answers_with_infinities_has_no_cluster_and_counts_nowhere() -> None:
    run = Run(inferring(random_images=10), sure_of)
    sent = {ALICE: biased(1, 3, 0), BOB: biased(2, np.inf, 3), CAROL: biased(3, 0, 3)}

    run.round(0, [update(client, found) for client, found in sent.items()])
    run.begin(1)

    assert run.clusters() == [0, None, 1, None]
    # (1 + 3) / 2
    assert [value(run.state[f"cluster_{j}"]) for j in range(2)] == [2.0, 2.0]


def test_no_clusters_come_of_infinities_alone() -> None:
    run = Run(inferring(random_images=10), sure_of)

    with pytest.raises(NothingToAggregate, match="no client's model gives finite logits"):
        run.round(0, [update(ALICE, biased(1, np.nan, 0))])


def test_random_images_are_the_same_for_all_models_and_however_many_fit_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def bright(tensors: TensorSet, photos: np.ndarray) -> np.ndarray:
        return np.stack([photos.sum((1, 2, 3)), np.zeros(len(photos), np.float32)], 1)

    def found() -> np.ndarray:
        return inferred_labels.label_distributions(bright, [{}, {}], 50, (3, 2, 2), np.random.default_rng(1))

    whole = found()
    monkeypatch.setattr(inferred_labels, "IMAGE_BYTES", 7 * 48)  # seven images of twelve floats
    pieces = found()

    np.testing.assert_array_equal(whole[0], whole[1])
    np.testing.assert_allclose(pieces, whole, rtol=1e-12)
    # Uniform in 0..1: the softmax of the sum of twelve, 6 on average, against 0.
    assert 0.99 < whole[0, 0] < 1


def test_fewer_kinds_of_clients_than_clusters_make_fewer_clusters() -> None:
    run = Run(method())

    run.round(0, counted(dict.fromkeys(IDS, (5, 5))))

    assert run.state["clusters"] == 1


def test_the_elbow_finds_the_clusters_within_the_bundles_room() -> None:
    run = Run(method(options={"clusters": "elbow"})).clustered()

    assert run.state["clusters"] == 2


def test_balanced_clusters_are_no_larger_than_the_limit() -> None:
    # max(ceil(4/2), int(2.4)) = 2: of three alike, the one nearest to Dave joins him.
    run = Run(method(options={"balanced": True}))

    run.round(0, counted({ALICE: (10, 0), BOB: (10, 0), CAROL: (8, 2), DAVE: (0, 10)}))

    assert run.clusters() == [0, 0, 1, 1]


def test_a_cluster_averages_its_own_by_photos_and_one_without_participants_keeps_its_model() -> None:
    run = Run(method()).clustered()
    before = run.state["cluster_1"]

    run.round(1, [update(CAROL, weights(4.0), photos=30), update(ALICE, weights(8.0), photos=10)])

    # (30 * 4 + 10 * 8) / 40 = 5
    assert value(run.state["cluster_0"]) == 5.0
    assert run.state["cluster_1"] is before


def test_order_of_arrival_changes_nothing() -> None:
    sent = [update(client, weights(1.0 + 0.1 * i), photos=3 + i) for i, client in enumerate(IDS)]
    asked = counted({ALICE: (9, 1), BOB: (1, 9), CAROL: (8, 2), DAVE: (2, 8)})
    runs = [Run(method(options={"start": "clusters"})) for _ in range(2)]

    for run, order in zip(runs, (1, -1), strict=True):
        run.round(0, asked[::order])
        run.begin(1)
        run.round(1, sent[::order])
        run.begin(2)

    one, other = (run.state["global"]["classifier.weight"] for run in runs)
    np.testing.assert_array_equal(one, other)
    assert runs[0].clusters() == runs[1].clusters()


def test_clients_download_the_model_of_their_cluster_and_there_is_no_global_one() -> None:
    run = Run(method()).clustered()
    run.round(1, [update(ALICE, weights(1.0)), update(BOB, weights(2.0))])

    assert [value((run.download(1, client) or {})["global"]) for client in IDS] == [1.0, 2.0, 1.0, 2.0]
    assert run.download(1, None) is None


def test_a_client_without_a_cluster_sits_extract_out_and_joins_in_the_last_phase() -> None:
    run = Run(method())
    run.round(0, counted({ALICE: (9, 1), BOB: (1, 9), CAROL: (8, 2)}))
    run.begin(1)

    late = run.download(1, DAVE)
    run.begin(2)

    assert late is None
    assert (run.download(2, DAVE) or {}).keys() == {"global", "cluster_0", "cluster_1"}


def test_the_last_phase_freezes_extractors_alone_and_starts_afresh() -> None:
    run = Run(method()).clustered()
    run.round(1, [update(ALICE, weights(1.0)), update(BOB, weights(2.0))])

    state = run.begin(2)

    assert sorted(state["cluster_0"]) == ["bn.batches", "bn.mean", "bn.weight", "conv.weight"]
    assert [value(state[f"cluster_{j}"]) for j in range(2)] == [1.0, 2.0]
    np.testing.assert_array_equal(state["global"]["classifier.weight"], np.full((2, 6), 5))
    assert (run.download(2, None) or {}).keys() == (run.download(2, ALICE) or {}).keys()


def test_the_last_phase_may_start_from_the_clusters_classifiers() -> None:
    run = Run(method(options={"start": "clusters"})).clustered()
    sent = {ALICE: weights(1.0, fc=((1, 2), (3, 4))), BOB: weights(2.0, fc=((5, 6), (7, 8)))}
    run.round(1, [update(client, tensors) for client, tensors in sent.items()])

    classifier = run.begin(2)["global"]

    # There is room for a third extractor, whose features are zeros.
    np.testing.assert_array_equal(classifier["classifier.weight"], [[1, 2, 5, 6, 0, 0], [3, 4, 7, 8, 0, 0]])
    np.testing.assert_array_equal(classifier["classifier.bias"], [3, 3])


def test_the_classifier_becomes_the_unweighted_mean() -> None:
    run = Run(method()).clustered()
    run.begin(2)

    def sent(number: float) -> TensorSet:
        return {"classifier.bias": np.float32([number, 0]), "classifier.weight": np.full((2, 6), number, np.float32)}

    run.round(2, [update(ALICE, sent(1.0), photos=1000), update(BOB, sent(2.0), photos=1)])

    np.testing.assert_array_equal(run.state["global"]["classifier.bias"], [1.5, 0])
    assert run.state["cluster_0"] is not None


def test_a_client_without_photos_counts_nowhere() -> None:
    run = Run(method())
    run.round(0, [*counted({ALICE: (9, 1), BOB: (1, 9)}), update(CAROL, photos=0, class_counts=(0, 0))])
    assert f"clients/{CAROL.hex()}/cluster" not in run.state

    run.begin(1)
    with pytest.raises(NothingToAggregate, match="no client trained on any photo"):
        run.round(1, [update(ALICE, weights(1.0), photos=0)])


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"extractor_rounds": 2, "classifier_rounds": None}, (2, 3)),
        ({"extractor_rounds": None, "classifier_rounds": 1}, (4, 1)),
        ({"extractor_rounds": 1, "classifier_rounds": 4}, (1, 4)),
    ],
)
def test_rounds_that_are_left_out_follow_from_the_others(
    options: dict[str, int | None], expected: tuple[int, int]
) -> None:
    _, extract, last = method(options=options).phases

    assert (extract.rounds, last.rounds) == expected


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"options": {"clusters": 5}}, "options.clusters: found 5, must be at most the population, 4"),
        ({"options": {"clusters": 4}}, "options.clusters: found 4, must be at most 3, the extractors that"),
        ({"options": {"clusters": 0}}, 'options.clusters: found 0, must be a whole number, 1 or more, or "elbow"'),
        ({"options": {"clusters": "knee"}}, "options.clusters: found 'knee'"),
        ({"options": {"clusters": True}}, "options.clusters: found True"),
        ({"options": {"labels": "true"}}, 'options.labels: found \'true\', must be "counts", "noisy" or "inferred"'),
        ({"options": {"labels": "noisy"}}, "options.epsilon: found nothing, must be a number above 0"),
        ({"options": {"labels": "noisy", "epsilon": 0}}, "options.epsilon: found 0, must be a number above 0"),
        ({"options": {"epsilon": 1}}, 'options.epsilon: found 1, must be left out, since options.labels is "counts"'),
        ({"options": {"labels": "noisy", "epsilon": 1}, "confusion": True}, "confusion: found true, must be false"),
        (
            {"options": {"labels": "noisy", "epsilon": 1}, "personal_evaluation": True},
            "personal_evaluation: found true, must be false",
        ),
        ({"options": {"random_images": 5}}, "options.random_images: found 5, must be left out"),
        ({"options": {"labels": "inferred"}}, r"manifests\[0\]: found program 'predict' without ONNX"),
        (
            {"rounds": 7},
            r"rounds: found 7, must be 1 for clustering \+ .* with extractor_rounds 2 and classifier_rounds 3",
        ),
        ({"rounds": 3, "options": {"classifier_rounds": None}}, "rounds: found 3, must be 1 for clustering"),
        (
            {"options": {"extractor_rounds": None, "classifier_rounds": None}},
            "options.extractor_rounds: found nothing, must be set, or options.classifier_rounds",
        ),
        ({"options": {"classifier_steps": 0}}, "options.classifier_steps: found 0"),
        ({"options": {"start": "warm"}}, "options.start: found 'warm'"),
        ({"options": {"k": 3}}, "options.k: found set, must be left out: the options of fedconcat are balanced, "),
    ],
)
def test_a_setting_that_does_not_fit_is_refused_by_name(changed: dict[str, Any], reason: str) -> None:
    with pytest.raises(SettingsError, match=reason):
        method(**changed)


def other_start() -> list[manifest_pb2.Manifest]:
    return parsed(network(), concatenated(3), concatenated(3, fill=0.25))


@pytest.mark.parametrize(
    ("manifests", "reason"),
    [
        (parsed(network()), "manifests: found no bundle that concatenates extractors"),
        (parsed(concatenated(3)), "manifests: found only bundles that concatenate"),
        (parsed(network(), network(width=4), concatenated(3)), r"manifests\[1\]: found a bundle with other tensors"),
        (
            parsed(network(), concatenated(3, width=4)),
            r"manifests\[1\]: found a bundle that concatenates other extract",
        ),
        (other_start(), r"manifests\[2\]: found a bundle with another classifier than the first one"),
    ],
)
def test_bundles_that_do_not_fit_are_refused(manifests: list[manifest_pb2.Manifest], reason: str) -> None:
    with pytest.raises(SettingsError, match=reason):
        method(manifests)


def test_the_model_is_the_classifier_with_the_extractors_that_it_stands_on(bench: Bench) -> None:
    settings = {**SETTINGS, "population": 2, "rounds": 3}
    settings["options"] = {"clusters": 2, "extractor_rounds": 1, "classifier_rounds": 1}
    bench.create(json.dumps(settings), [network(), concatenated(3)])
    bench.enrol([ALICE, BOB])
    for client, counts in ((ALICE, (9, 1)), (BOB, (1, 9))):
        assignment = bench.assignment(client)
        bench.send(client, assignment, *update_of(assignment, None, class_counts=counts))
    bench.advance()
    with pytest.raises(Unknown, match="task 'task' has no global model"):
        bench.model()

    for client in (ALICE, BOB):
        bench.report(client)
    bench.advance()

    # The bundle takes three extractors, of which two clusters leave one out.
    assert sorted(bench.model()) == ["classifier.bias", "classifier.weight"]
    extractors = tasks.model(bench.federation, "task").extractors
    assert [extractor.name for extractor in extractors] == ["cluster_0", "cluster_1", "cluster_2"]
    first, second, absent = (extractor.blob_sha256 for extractor in extractors)
    inside = ["bn.batches", "bn.mean", "bn.weight", "conv.weight"]
    assert sorted(bench.store.tensors(first)) == sorted(bench.store.tensors(second)) == inside
    assert not absent
