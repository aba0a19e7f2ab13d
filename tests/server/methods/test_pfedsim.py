from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import log, sqrt
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedlens_proto.blob import Array
from fedlens_server.methods.arithmetic.weighted_sum import WeightedSum
from fedlens_server.methods.pfedsim import PAPER, REFERENCE, mixing_weights, similarities, updated
from fedlens_server.planning.method import Method, NothingToAggregate, State, TensorSet
from tests.server.fakes import ALICE, BOB, CAROL, DAVE
from tests.server.methods.golden import cases
from tests.server.methods.tasks import after, made, tools, update, uploads
from tests.server.networks import weights

# Rows of class 0 are equal; those of class 1 are at 45 degrees.
LEFT, RIGHT = ((1.0, 0.0), (0.0, 1.0)), ((2.0, 0.0), (3.0, 3.0))
Matrix = tuple[tuple[float, float], tuple[float, float]]
EQUAL = -log(1 - 0.9999)
OBLIQUE = -log(1 - sqrt(0.5))
SAMPLES = st.integers(1, 5).flatmap(lambda k: hnp.arrays(np.float64, (k, 3, 2), elements=st.floats(-9, 9)))


def mixed(weights: Array, tensors: Sequence[Array]) -> Array:
    """One tensor of a client's next extractor, `sum_j a_ij omega_j`."""
    terms = [(float(a), {"omega": omega}) for a, omega in zip(weights, tensors, strict=True)]
    return WeightedSum({"omega": terms})["omega"]


@pytest.mark.parametrize(
    ("one", "other", "paper", "reference"),
    [
        # Class 0: cosine 1, in the paper's taken as 0.9999; class 1: (0 * 3 + 1 * 3) / (1 * sqrt(18)) = sqrt(1/2).
        (LEFT, RIGHT, (EQUAL + OBLIQUE) / 2, (1 + sqrt(0.5)) / 2),
        # Cosines -1 and sqrt(1/2): -log(1 - sqrt(1/2)) / 2, and max(0, (-1 + 0.707) / 2) = 0.
        (LEFT, ((-1.0, 0.0), (1.0, 1.0)), OBLIQUE / 2, 0.0),
        # Equal classifiers are finitely similar.
        (LEFT, LEFT, EQUAL, 0.9999),
        # One of zeros resembles none.
        (((0.0, 0.0), (0.0, 0.0)), LEFT, 0.0, 0.0),
    ],
)
def test_similarity_is_the_mean_over_classes_of_the_papers_logarithm_or_the_references_cosine(
    one: Matrix, other: Matrix, paper: float, reference: float
) -> None:
    for variant, expected in ((PAPER, paper), (REFERENCE, reference)):
        found = similarities([np.float32(one), np.float32(other)], variant)

        np.testing.assert_allclose(found, [[1, expected], [expected, 1]], rtol=1e-7)
        assert found.dtype == np.float64


def test_only_pairs_of_one_round_change_and_the_diagonal_stays_1() -> None:
    before = np.eye(4) + np.diag([0.5] * 3, 1) + np.diag([0.5] * 3, -1)

    after = updated(before, [3, 1], [np.float32(RIGHT), np.float32(LEFT)])

    expected = before.copy()
    expected[1, 3] = expected[3, 1] = (EQUAL + OBLIQUE) / 2
    np.testing.assert_allclose(after, expected, rtol=1e-6)


def test_one_client_alone_changes_nothing() -> None:
    np.testing.assert_array_equal(updated(np.eye(3), [1], [np.float32(LEFT)]), np.eye(3))


def test_the_papers_weights_are_a_rows_shares() -> None:
    # 1 + 3 = 4; clients that were never in one round get nothing.
    np.testing.assert_allclose(mixing_weights(np.array([3.0, 1.0, 0.0]), 1), [0.75, 0.25, 0.0])


def test_the_references_weights_are_logarithms_with_the_own_similarity_0_9999() -> None:
    # -log(1 - 0.5) = log 2 against -log(1e-4)
    found = mixing_weights(np.array([0.5, 1.0, 0.0]), 1, REFERENCE)

    np.testing.assert_allclose(found, np.array([log(2), EQUAL, 0.0]) / (log(2) + EQUAL))


def test_who_resembles_nobody_keeps_its_own_extractor() -> None:
    row = np.array([0.0, 1.0, 0.0])

    np.testing.assert_array_equal(mixing_weights(row, 1, PAPER), row)
    np.testing.assert_array_equal(mixing_weights(row, 1, REFERENCE), row)


@settings(max_examples=50, deadline=None)
@given(classifiers=SAMPLES, variant=st.sampled_from([PAPER, REFERENCE]), data=st.data())
def test_the_matrix_does_not_depend_on_the_order_of_the_updates(
    classifiers: np.ndarray[Any, Any], variant: str, data: st.DataObject
) -> None:
    before, members = np.eye(7), list(range(1, len(classifiers) + 1))
    kept = before.copy(), classifiers.copy()
    order = data.draw(st.permutations(range(len(members))))

    found = updated(before, members, list(classifiers), variant)
    again = updated(before, [members[k] for k in order], [classifiers[k] for k in order], variant)

    np.testing.assert_array_equal(found, again)
    np.testing.assert_array_equal(found, found.T)
    assert np.isfinite(found).all() and (found >= 0).all() and (np.diag(found) == 1).all()
    np.testing.assert_array_equal(before, kept[0])
    np.testing.assert_array_equal(classifiers, kept[1])


@settings(max_examples=50, deadline=None)
@given(row=hnp.arrays(np.float64, 4, elements=st.floats(0, 0.9999)), variant=st.sampled_from([PAPER, REFERENCE]))
def test_a_mix_lies_between_the_extractors(row: np.ndarray[Any, Any], variant: str) -> None:
    row[2] = 1.0
    extractors = [np.float32([k, -k, 1.0]) for k in range(4)]

    shares = mixing_weights(row, 2, variant)
    found = mixed(shares, extractors)

    assert shares.sum() == pytest.approx(1.0)
    assert (found >= np.min(extractors, axis=0) - 1e-5).all() and (found <= np.max(extractors, axis=0) + 1e-5).all()


@pytest.mark.parametrize(
    ("variant", "matrix", "rows", "prefix"),
    [
        (REFERENCE, "matrix_after{}", "rows_after1", "params_after{}_"),
        (PAPER, "alt_paper_phi_after{}", "alt_paper_rows_after1", "alt_paper_"),
    ],
)
def test_it_agrees_with_the_worked_cases(variant: str, matrix: str, rows: str, prefix: str) -> None:
    for case in cases("pfedsim_"):
        names = [key.removeprefix("start_") for key in case.inputs if key.startswith("start_")]
        held = {name: case.inputs[f"start_{name}"].copy() for name in names}
        similarity = np.eye(len(held[names[0]]))
        for t in (0, 1):
            members = [int(k) for k in case.inputs[f"S{t}"]]
            for name in names:
                held[name][members] = case.inputs[f"up{t}_{name}"][members]
            similarity = updated(similarity, members, [held["classifier_weight"][k] for k in members], variant)
            shares = np.array([mixing_weights(row, i, variant) for i, row in enumerate(similarity)])
            extractor = [name for name in names if name.startswith("base")]
            new = held | {name: np.array([mixed(row, list(held[name])) for row in shares]) for name in extractor}
            case.check(matrix.format(t), similarity)
            known = [name for name in names if prefix.format(t) + name in case.outputs]
            for name in known if variant == REFERENCE or t == 1 else ():
                case.check(prefix.format(t) + name, new[name])
            assert known
        case.check(rows, shares)


def pfedsim(rounds: int = 4, **options: Any) -> Method:
    return made("pfedsim", rounds=rounds, options=options)


def run(method: Method, *rounds: Mapping[bytes, TensorSet]) -> State:
    """The state after these rounds of the last phase, all others skipped."""
    state = method.begin(method.phases[-1], State(), tools())
    for sent in rounds:
        state = after(method, state, uploads(sent), phase=-1)
    return state


def personal(method: Method, state: State, client: bytes) -> TensorSet:
    return (method.download(method.phases[-1], state, client) or {})["personal"]


@pytest.mark.parametrize(
    ("rounds", "options", "expected"),
    [
        (7, {}, [("warm-up", 3), ("personalise", 4)]),
        (5, {"warm_up": 0.5}, [("warm-up", 2), ("personalise", 3)]),
        (5, {"warm_up": 0}, [("personalise", 5)]),
        (5, {"warm_up": 1}, [("warm-up", 5)]),
        (100, {"warm_up": 0.29}, [("warm-up", 29), ("personalise", 71)]),  # 0.29 * 100 is 28.99... in float64
    ],
)
def test_the_warm_up_has_the_share_of_rounds_that_is_asked_for(
    rounds: int, options: dict[str, float], expected: list[tuple[str, int]]
) -> None:
    assert [(phase.name, phase.rounds) for phase in pfedsim(rounds, **options).phases] == expected


def test_a_client_gets_a_mixed_extractor_and_all_else_of_its_own() -> None:
    method, own = pfedsim(warm_up=0), weights(1.0, LEFT)
    state = run(method, {ALICE: own, BOB: weights(5.0, RIGHT)})

    mixed = personal(method, state, ALICE)

    # Phi = (EQUAL + OBLIQUE) / 2; (1 * 1 + Phi * 5) / (1 + Phi)
    phi = (EQUAL + OBLIQUE) / 2
    assert isinstance(mixed, WeightedSum)
    assert mixed.keys() == own.keys()
    summed = ["bn.mean", "bn.weight", "conv.weight"]
    for name in summed:
        np.testing.assert_allclose(mixed[name], np.full_like(own[name], (1 + 5 * phi) / (1 + phi)), rtol=1e-6)
    for name in own.keys() - set(summed):
        np.testing.assert_array_equal(mixed[name], own[name])


def test_who_was_alone_in_its_round_gets_its_own_upload_back_and_others_the_global_model() -> None:
    method = pfedsim()
    state = run(method, {ALICE: weights(1.0, LEFT)}, {BOB: weights(5.0, RIGHT)})

    assert personal(method, state, ALICE) is state.clients[ALICE]["model"]
    assert personal(method, state, CAROL) is state.shared["global"]
    assert method.download(method.phases[1], state, None) is None
    assert method.download(method.phases[0], state, None) == {"global": state.shared["global"]}


def test_similarities_of_earlier_rounds_stay_and_models_are_the_last_ones() -> None:
    first = {ALICE: weights(1.0, LEFT), BOB: weights(5.0, RIGHT)}
    second = {BOB: weights(9.0, LEFT), CAROL: weights(2.0, LEFT)}
    method = pfedsim(warm_up=0)
    state = run(method, first, second)

    mixed = personal(method, state, ALICE)

    # Bob's similarity is that of the first round, his extractor that of the second.
    phi = (EQUAL + OBLIQUE) / 2
    np.testing.assert_allclose(mixed["conv.weight"], np.full((2, 3), (1 + 9 * phi) / (1 + phi)), rtol=1e-6)


def test_a_forgotten_client_is_mixed_in_no_more_and_its_row_goes_to_the_next_one_without_its_similarities() -> None:
    method = pfedsim(warm_up=0)
    state = run(method, {ALICE: weights(1.0, LEFT), BOB: weights(5.0, LEFT), CAROL: weights(9.0, LEFT)})
    state = replace(state, clients={client: own for client, own in state.clients.items() if client != BOB})

    left = personal(method, state, ALICE)
    state = after(method, state, [update(DAVE, weights(7.0, LEFT))], phase=-1)

    # Alice and Carol: (1 * 1 + EQUAL * 9) / (1 + EQUAL)
    expected = np.full((2, 3), (1 + EQUAL * 9) / (1 + EQUAL))
    np.testing.assert_allclose(left["conv.weight"], expected, rtol=1e-6)
    assert state.shared["similarity"].shape == (3, 3)
    assert personal(method, state, DAVE) is state.clients[DAVE]["model"]
    np.testing.assert_array_equal(personal(method, state, ALICE)["conv.weight"], left["conv.weight"])


def test_updates_in_another_order_give_the_same_state() -> None:
    sent = {ALICE: weights(1.0, LEFT), BOB: weights(5.0, RIGHT), CAROL: weights(9.0, ((1.0, 0.5), (0.1, 1.0)))}

    state, again = (run(pfedsim(warm_up=0), dict(each)) for each in (sent.items(), reversed(sent.items())))

    np.testing.assert_array_equal(state.shared["similarity"], again.shared["similarity"])
    for found in (state, again):
        assert [found.clients[client]["slot"] for client in sent] == [0, 1, 2]


def test_nobody_with_photos_gives_no_new_state() -> None:
    method = pfedsim(warm_up=0)
    state = run(method)

    with pytest.raises(NothingToAggregate, match="no client trained on any photo"):
        after(method, state, [update(ALICE, weights(1.0), photos=0)], phase=-1)
