"""Rules about updates in rounds: who is left out, what it is told, and what comes out."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedlens_proto.blob import Array
from fedlens_proto.v1 import enrolment_pb2
from fedlens_server.engine import rounds
from fedlens_server.planning.task_settings import SettingsError
from tests.server.engine.arrivals import Arrivals
from tests.server.fakes import ALICE, BOB, CAPABILITIES, CAROL, DAVE, EVE, SEED, Bench
from tests.server.methods.programs import prototyping
from tests.server.methods.test_fedap import with_running_statistics
from tests.server.networks import network, weights

HONEST = (ALICE, BOB, CAROL, DAVE)
HUGE = 3e38


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Arrivals]:
    with closing(Arrivals(tmp_path / "rules")) as found:
        found.enrol([*HONEST, EVE])
        yield found


def poisoned(server: Arrivals) -> None:
    """Four clients report changes by 1, and Eve the largest numbers that there are."""
    for client in (*HONEST, EVE):
        assert server.has_place(client)
    for client in HONEST:
        server.report(client, 1.0)
    server.report(EVE, HUGE)


def bias(server: Arrivals) -> Array:
    """The bias of the global model."""
    return np.array(server.model()["fc.bias"])


def test_one_poisoner_of_five_changes_nothing_and_sits_out(server: Arrivals) -> None:
    server.take(goal=5)
    before = bias(server)
    poisoned(server)

    server.advance()

    np.testing.assert_allclose(bias(server), before + 1.0)
    assert server.state(EVE) == "excluded"
    assert "more than 10 times the median" in server.members()[EVE].reason
    assert server.reason(EVE) == "sits_out"
    assert server.has_place(ALICE)


@pytest.mark.parametrize("rules", [{}, {"exclude": False, "median": True}])
def test_class_means_of_a_poisoner_move_no_prototype(server: Arrivals, rules: dict[str, bool]) -> None:
    sends_any = enrolment_pb2.Capabilities(tables=["*"])
    sends_any.MergeFrom(CAPABILITIES)
    server.enrol([*HONEST, EVE], capabilities=sends_any)
    server.take(prototyping(), goal=5, method="fedproto", **rules)
    for client in (*HONEST, EVE):
        assert server.has_place(client)
    for client in (*HONEST, EVE):
        # One class each, as with photos of few classes, and Eve both.
        has = np.float32([1, 1] if client == EVE else [client in HONEST[:2], client in HONEST[2:]])
        rows = has[:, None] * np.full((2, 2), HUGE if client == EVE else 3.0, np.float32)
        server.upload(client, tables={"prototypes": {"prototypes": rows, "has": has}})

    server.advance()

    assert server.state(EVE) == ("reported" if rules else "excluded")
    np.testing.assert_array_equal(server.task.values.shared["prototypes"]["prototypes"], np.full((2, 2), 3.0))


def test_fedns_is_steered_by_one_poisoner_of_five_without_clip_and_not_with_it(tmp_path: Path) -> None:
    found = []
    for clip in (False, True):
        with closing(Arrivals(tmp_path / f"clip-{clip}")) as server:
            server.enrol([*HONEST, EVE])
            server.take(network(), goal=5, method="fedns", exclude=False, clip=clip, seed=SEED)
            for client in (*HONEST, EVE):
                assert server.has_place(client)
            for client in (*HONEST, EVE):
                moved = np.float32([[0, 1, 2]] * 2) * (1e6 if client == EVE else 1)
                server.upload(client, weights(0.0) | {"conv.weight": moved}, class_counts=[5, 5])
            server.advance()
            found.append(float(server.model()["conv.weight"][0, 1]))
    # Her variance is 10^12 times that of the others: she has all the weight. With `clip`, all five are alike.
    assert found[0] == pytest.approx(1e6, rel=1e-3)
    assert found[1] == pytest.approx(1.0, rel=1e-3)


def test_with_the_rules_off_the_poisoner_has_its_way(server: Arrivals) -> None:
    server.take(goal=5, exclude=False, clip=False)
    poisoned(server)
    server.advance()
    assert np.abs(bias(server)).max() > 1e37


def test_nobody_counts_photos_and_so_sets_the_measure_where_nothing_is_trained(server: Arrivals) -> None:
    server.take(with_running_statistics(), method="fedap", rounds=2, goal=2, options={"warm_up": 0})
    assert server.has_place(ALICE)

    server.upload(ALICE, server.tensors(server.assignment(ALICE)), num_examples=1)

    assert server.members()[ALICE].num_examples == 0


def test_who_was_left_out_is_told_again_that_its_update_is_stored(server: Arrivals) -> None:
    server.take(goal=5)
    assignment = server.check_in(EVE).assignment
    poisoned(server)
    receipt = server.members()[EVE]
    assert receipt.bytes_received > 0
    membership = server.expect(EVE)
    body = membership.member.body_sha256
    server.advance()

    again = server.expect(EVE)

    assert assignment.round == 1
    assert again.member.is_stored
    assert again.member.body_sha256 == body


def test_a_round_with_too_few_left_is_abandoned_and_says_by_which_rule(server: Arrivals) -> None:
    server.take(goal=5, min_reports=5)
    poisoned(server)

    server.advance()

    found = server.show().rounds[0]
    assert server.ends == ["abandoned", "open"]
    assert found.reason.startswith("valid updates: 5, of which rule `exclude` left 1 out; needed: 5")
    assert server.state(EVE) == "excluded"


@pytest.mark.parametrize("rule", [{}, {"median": True}, {"trimmed_mean": 0.3}], ids=str)
def test_a_restart_while_a_round_closes_leaves_out_the_same_and_gives_the_same_bytes(
    tmp_path: Path, rule: dict[str, Any]
) -> None:
    models = []
    for name, restarts in (("straight", False), ("restarted", True)):
        with closing(Arrivals(tmp_path / name)) as server:
            server.enrol([*HONEST, EVE])
            server.take(goal=5, **rule)
            poisoned(server)
            if restarts:
                current = server.task.round
                assert current is not None
                assert rounds.close(server.federation, current.key).result()
                server.reopen()
            server.advance()
            assert server.state(EVE) == "excluded"
            models.append(bias(server))
    np.testing.assert_array_equal(*models)


def test_two_updates_are_clipped_to_the_round_before_even_after_a_restart(server: Arrivals) -> None:
    server.take(goal=3, min_reports=2, rest=0, deadline_s=60)
    for client in (ALICE, BOB, CAROL):
        assert server.has_place(client)
    for client in (ALICE, BOB, CAROL):
        server.report(client, 1.0)
    server.advance()
    server.reopen()
    before = bias(server)
    assert server.has_place(ALICE)
    assert server.has_place(BOB)

    server.report(ALICE, 1.0)
    server.report(BOB, 5.0)
    server.clock.wind(60)
    server.advance()

    # Bob's change by 5 counts as one by 1.
    np.testing.assert_allclose(bias(server), before + 1.0, rtol=1e-5)


def test_claimed_photos_count_three_times_the_median_at_most(server: Arrivals) -> None:
    server.take(goal=3, clip=False)
    before = bias(server)
    for client in (ALICE, BOB, CAROL):
        assert server.has_place(client)
    server.report(ALICE, 0.0)
    server.report(BOB, 0.0)
    server.report(CAROL, 5.0, num_examples=10**6)
    server.advance()
    # Ten, ten and thirty examples: 5 * 30 / 50 = 3.
    np.testing.assert_allclose(bias(server), before + 3.0, rtol=1e-6)


def test_a_task_that_draws_its_members_has_no_rule_unless_it_asks_for_one(tmp_path: Path) -> None:
    with closing(Bench(tmp_path / "drawn")) as bench:
        bench.enrol([ALICE, BOB])
        bench.start(seed=SEED)
        assert not bench.task.settings.looks_at_norms
        assert not bench.task.settings.cap
        bench.report(ALICE)
        assert bench.member(ALICE).norms is None


@pytest.mark.parametrize("rule", [{"median": True}, {"trimmed_mean": 0.2}, {"krum": 1}], ids=str)
def test_rules_instead_of_the_mean_withstand_a_poisoner_by_themselves(server: Arrivals, rule: dict[str, Any]) -> None:
    server.take(goal=5, min_reports=5, exclude=False, clip=False, cap=False, **rule)
    before = bias(server)
    poisoned(server)
    server.advance()
    np.testing.assert_allclose(bias(server), before + 1.0)
    assert server.state(EVE) == "reported"


def test_a_rule_that_does_not_fit_the_method_is_refused_by_name(server: Arrivals) -> None:
    with pytest.raises(SettingsError, match="median: found true with method 'fedns', which is not one mean of one"):
        server.take(goal=5, method="fedns", median=True)


@pytest.mark.parametrize("rule", [{}, {"median": True}, {"krum": 1}], ids=str)
@pytest.mark.parametrize(("codec", "difference"), [("f16", False), ("int8", True), ("f32", True)])
def test_rules_look_at_updates_as_they_are_decoded(
    server: Arrivals, rule: dict[str, Any], codec: str, difference: bool
) -> None:
    clip = not rule
    server.take(goal=5, min_reports=5, exclude=False, clip=clip, codec=codec, difference=difference, **rule)
    before = bias(server)
    for client in (*HONEST, EVE):
        assert server.has_place(client)
    for client in HONEST:
        server.report(client, 1.0)
    server.report(EVE, 64.0)
    server.advance()
    np.testing.assert_allclose(bias(server), before + 1.0, rtol=0.01)
