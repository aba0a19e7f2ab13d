from collections.abc import Iterator
from pathlib import Path

import pytest

from fedlens_edge_client.storage.crashes import Crashes
from fedlens_edge_client.storage.state_folder import StateFolder

BUNDLE, OTHER = bytes(32), bytes([1] * 32)
SERVER = "https://127.0.0.1:1"
HOUR = 3600.0


class Time:
    def __init__(self) -> None:
        self.now = 1e9

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def crashes(tmp_path: Path, time: Time) -> Iterator[Crashes]:
    state = StateFolder.open(tmp_path / "state", SERVER)
    yield Crashes(state, time)
    state.close()


def test_the_pause_doubles_with_each_crash_up_to_a_day(crashes: Crashes, time: Time) -> None:
    pauses = []
    for _ in range(13):
        crashes.note(BUNDLE)
        began = time.now
        while crashes.refusal(BUNDLE):
            time.now += 60
        pauses.append((time.now - began) / 60)

    # In minutes; the last two would be 34 and 68 hours.
    assert pauses == [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 1440, 1440]


def test_the_text_says_how_often_and_when_it_may_run_again(crashes: Crashes) -> None:
    name = f"bundle {BUNDLE.hex()[:12]}"

    assert crashes.note(BUNDLE) == f"{name} has ended its process once, and may run again in 1 min"
    assert crashes.note(BUNDLE) == f"{name} has ended its process 2 times, and may run again in 2 min"
    assert crashes.refusal(BUNDLE) == f"{name} has ended its process 2 times, and may run again in 2 min"


def test_after_the_twentieth_crash_a_bundle_never_runs_again_and_another_does(crashes: Crashes, time: Time) -> None:
    for _ in range(19):
        crashes.note(BUNDLE)
    time.now += 1000 * HOUR
    assert crashes.refusal(BUNDLE) == ""

    crashes.note(BUNDLE)
    time.now += 1000 * HOUR

    assert crashes.refusal(BUNDLE).endswith("20 times, and does not run here again: export another bundle")
    assert crashes.refusal(OTHER) == ""


def test_crashes_are_counted_over_restarts_and_enrolments(crashes: Crashes, tmp_path: Path, time: Time) -> None:
    crashes.note(BUNDLE)
    crashes.state.reset()
    crashes.state.close()
    state = StateFolder.open(tmp_path / "state", SERVER)

    assert "once" in Crashes(state, time).refusal(BUNDLE)
    state.close()


def test_a_clock_that_was_set_back_lengthens_no_pause(crashes: Crashes, time: Time) -> None:
    crashes.note(BUNDLE)
    time.now -= 1000 * HOUR

    assert crashes.refusal(BUNDLE).endswith("may run again in 1 min")
