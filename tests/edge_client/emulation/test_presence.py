"""Presence plans, and phones that come and go by them on a clock of their own."""

import asyncio
from collections.abc import Awaitable
from pathlib import Path
from typing import TypeVar

import pytest

from fedlens.compare.run.study_clock import StudyClock
from fedlens_edge_client.client.clock import Clock
from fedlens_edge_client.emulation.emulated_time import FastClock, come_and_go
from fedlens_edge_client.emulation.presence import PresencePlan, PresencePlanError
from fedlens_server import clock as server_clock

T = TypeVar("T")
# StudyClock.START = 1e9 s lies in the hour 277,777, at 1 o'clock of a day: 277,777 = 24 x 11,574 + 1.
HOUR = 277_777
BEGIN = HOUR * 3600


def nights(*hours: int, **others: float) -> PresencePlan:
    """All phones are there in these hours of a day, and in no other."""
    return PresencePlan(hours=tuple(float(hour in hours) for hour in range(24)), **others)  # type: ignore[arg-type]


async def finished(working: Awaitable[T], clock: StudyClock) -> T:
    """The result of what sleeps by a clock, which jumps from one sleeper to the next."""
    task = asyncio.ensure_future(working)
    while not task.done():
        for _ in range(10):
            await asyncio.sleep(0)  # all take the steps that they can take now
        if (awake := clock.next_awake()) is not None:
            clock.jump(awake)
    return task.result()


def test_shares_are_met_and_drawn_alike_each_time() -> None:
    plan = PresencePlan(seed=3, charging=0.5, unmetered=0.5, leaves=0.4)

    there = [plan.seconds_there(client, hour) for client in range(100) for hour in range(100)]

    # 10,000 draws of 1/4: 2500 +- 43; of these 40 % go in between, 1000 +- 24, after 1800 s in the mean.
    assert abs(sum(seconds > 0 for seconds in there) - 2500) < 215
    gone = [seconds for seconds in there if 0 < seconds < 3600]
    assert abs(len(gone) - 1000) < 150
    assert abs(sum(gone) / len(gone) - 1800) < 5 * 33
    assert there == [plan.seconds_there(client, hour) for client in range(100) for hour in range(100)]


def test_a_phone_keeps_the_hours_of_its_own_time_zone() -> None:
    plan = nights(3, time_zones=2)

    # Where it is three o'clock an hour earlier: client 1.
    assert [plan.seconds_there(0, hour) for hour in (2, 3, 24 + 3)] == [0, 3600, 3600]
    assert [plan.seconds_there(1, hour) for hour in (2, 3, 24 + 2)] == [3600, 0, 3600]


def test_a_wrong_clock_is_set_anew_every_day_and_by_a_day_at_most() -> None:
    plan = PresencePlan(clock_off_s=86400.0)

    errors = [plan.clock_error_s(0, 24 * day) for day in range(100)]

    assert plan.clock_error_s(0, 24) == plan.clock_error_s(0, 47)
    assert len(set(errors)) == 100
    assert -86400 <= min(errors) < -60000 and 60000 < max(errors) <= 86400


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hours = [1.0, 0.5]", r"hours: found .*, must be 24 numbers from 0 to 1"),
        (f"hours = {[2.0] * 24}", r"hours\[0\]: found 2\.0, must be 24 numbers from 0 to 1"),
        ("charging = 2", r"charging: found 2, must be a number from 0 to 1"),
        ("chargin = 1", r"chargin: unknown key; did you mean charging\?"),
        ("time_zones = 25", r"time_zones: found 25, must be an integer from 1 to 24"),
    ],
)
def test_a_wrong_plan_names_the_key_what_was_found_and_what_is_allowed(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(text, encoding="utf-8")

    with pytest.raises(PresencePlanError, match=rf"plan\.toml: {message}"):
        PresencePlan.load(path)


async def test_a_phone_attends_in_the_hours_of_its_plan_until_it_is_done() -> None:
    clock, attended = StudyClock(), list[float]()

    async def attend(own: Clock) -> str:
        attended.append((clock.now() - BEGIN) / 3600)
        await own.sleep(9000)
        return "nothing takes so long"

    async def attend_thrice(own: Clock) -> str:
        return "done" if len(attended) == 3 else await attend(own)

    assert await finished(come_and_go(nights(3, 4), 0, clock, attend_thrice), clock) == "done"

    # From 1 o'clock on: at 3 o'clock of three days, each time for two hours.
    assert attended == [2, 26, 50]


async def test_a_phone_that_stays_for_hours_and_days_is_not_interrupted() -> None:
    clock, began = StudyClock(), list[float]()

    async def attend(own: Clock) -> None:
        began.append(clock.now())
        if len(began) == 1:
            await own.sleep(100 * 3600)

    await finished(come_and_go(PresencePlan(), 0, clock, attend), clock)

    assert began == [StudyClock().now()]


async def test_a_phone_that_stays_is_interrupted_when_its_clock_is_set_anew() -> None:
    clock, plan, told = StudyClock(), PresencePlan(clock_off_s=86400.0), list[tuple[float, float]]()

    async def attend(own: Clock) -> None:
        told.append((clock.now() / 3600 - HOUR, own.now() - clock.now()))
        if len(told) < 3:
            await own.sleep(100 * 3600)

    await finished(come_and_go(plan, 0, clock, attend), clock)

    # It begins in the hour from 1 o'clock on; 23 and 47 hours later it is midnight.
    (began, first), *others = told
    assert 0 < began < 1
    assert first == pytest.approx(plan.clock_error_s(0, HOUR))
    assert [when for when, _ in others] == pytest.approx([23, 47])
    assert [error for _, error in others] == pytest.approx([plan.clock_error_s(0, HOUR + hour) for hour in (23, 47)])


async def test_a_phone_that_goes_leaves_what_it_does_in_the_middle() -> None:
    clock, left = StudyClock(), list[float]()
    plan = PresencePlan(leaves=1.0)

    async def attend(own: Clock) -> None:
        if len(left) == 2:
            return
        try:
            await own.sleep(4000)
        finally:
            left.append((clock.now() - BEGIN) / 3600)

    await finished(come_and_go(plan, 0, clock, attend), clock)

    expected = [hour + plan.seconds_there(0, HOUR + hour) / 3600 for hour in range(3)]
    # It begins in the middle of the first hour, which may be over for it.
    assert left == pytest.approx([hour for hour in expected if hour > 1e9 / 3600 - HOUR][:2])


async def test_a_phone_whose_clock_is_wrong_sleeps_as_long_as_others() -> None:
    clock, plan = StudyClock(), PresencePlan(clock_off_s=86400.0)

    async def attend(own: Clock) -> tuple[float, float]:
        before = own.now(), clock.now()
        await own.sleep(60)
        return own.now() - before[1], clock.now() - before[1]

    told, slept = await finished(come_and_go(plan, 0, clock, attend), clock)

    assert slept == 60
    assert told == pytest.approx(60 + plan.clock_error_s(0, HOUR))


async def test_an_error_of_a_phone_ends_its_coming_and_going() -> None:
    async def attend(own: Clock) -> None:
        raise PresencePlanError("it cannot go on")

    with pytest.raises(PresencePlanError, match="cannot go on"):
        await come_and_go(PresencePlan(), 0, StudyClock(), attend)


async def test_a_fast_clock_runs_so_that_an_hour_lasts_as_long_as_it_is_told() -> None:
    clock, now = FastClock(hour_lasts_s=0.1), asyncio.get_running_loop().time
    # The time is taken on both sides of the clock: a busy machine may stand still between two lines.
    before, began, after = now(), clock.now(), now()

    await clock.sleep(3600)

    at_least, ended, at_most = now() - after, clock.now(), now() - before
    assert at_most >= 0.09
    # Ten hours a second.
    assert 0.8 * at_least * 36000 <= ended - began <= 1.2 * at_most * 36000


def test_server_and_phones_agree_on_the_time() -> None:
    before = server_clock.FastClock(hour_lasts_s=2).now()
    emulated = FastClock(hour_lasts_s=2).now()
    assert before <= emulated <= server_clock.FastClock(hour_lasts_s=2).now()
