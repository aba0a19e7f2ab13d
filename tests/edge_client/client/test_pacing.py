import pytest

from fedlens_edge_client.client.pacing import LONGEST_PAUSE_S, Pacing


def test_a_client_waits_as_long_as_it_is_told_and_up_to_a_tenth_longer() -> None:
    assert 2.0 <= Pacing().pause_s(2000, 0.0) <= 2.2


def test_a_server_that_asks_for_weeks_is_asked_again_within_the_hour() -> None:
    assert Pacing().pause_s((1 << 32) - 1, 0.0) <= 1.1 * LONGEST_PAUSE_S


def test_a_server_that_sends_its_client_away_at_once_is_asked_less_and_less_often() -> None:
    pacing = Pacing()
    pauses = [pacing.pause_s(0, 0.0) for _ in range(4)]

    # Once is no habit; then 0.2 s, doubled each time, plus up to a tenth.
    assert pauses[0] == 0.0
    for pause, least in zip(pauses[1:], (0.2, 0.4, 0.8), strict=True):
        assert least <= pause <= 1.1 * least


def test_a_client_that_is_sent_away_for_days_goes_on_asking() -> None:
    pacing = Pacing()
    pauses = [pacing.pause_s(0, 0.0) for _ in range(2000)]

    assert pauses[-1] == pytest.approx(31.5, abs=1.5)  # 30 s, plus up to a tenth


def test_an_answer_that_was_held_ends_the_slowing_down() -> None:
    pacing = Pacing()
    for _ in range(5):
        pacing.pause_s(0, 0.0)
    pacing.pause_s(0, 20.0)

    assert pacing.pause_s(0, 0.0) == 0.0
