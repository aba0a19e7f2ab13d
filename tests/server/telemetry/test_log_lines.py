import json
import logging
from collections.abc import Iterator

import pytest

from fedlens_server.telemetry import events
from fedlens_server.telemetry.events import Event, Request
from tests.server.telemetry.logs import Log, logged


@pytest.fixture(params=["human"])
def log(request: pytest.FixtureRequest) -> Iterator[Log]:
    with logged(request.param) as log:
        yield log


def test_people_read_the_kind_first_and_texts_in_quotes(log: Log) -> None:
    events.note(Event.QUARANTINED, task="a b", round=3, client=bytes(range(32)), reason='has "norm"\n inf', detail="")

    (line,) = str(log).splitlines()
    assert line.split(" ", 1)[1] == (
        r'WARNING quarantined task="a b" round=3 client=000102030405 reason="has \"norm\"\n inf"'
    )


@pytest.mark.parametrize("log", ["json"], indirect=True)
def test_programs_read_one_object_a_line_with_the_error_in_it(log: Log) -> None:
    events.note(Event.ROUND_COMMITTED, task="photos", round=3, seconds=1.23456)
    try:
        raise ValueError("broken")
    except ValueError:
        logging.getLogger("elsewhere").exception("it failed %d times", 2)

    first, second = map(json.loads, str(log).splitlines())
    assert first.pop("time").endswith("Z")
    assert first == {"level": "info", "event": "round-committed", "task": "photos", "round": 3, "seconds": 1.235}
    assert (second["level"], second["message"]) == ("error", "it failed 2 times")
    assert second["error"].endswith("ValueError: broken")


def test_what_is_logged_during_a_request_names_it(log: Log) -> None:
    token = events.REQUEST.set(Request("ab12", "192.0.2.7", "POST /v1/check-in", client=bytes(32)))
    events.note(Event.REFUSED, code="forbidden")
    logging.getLogger("elsewhere").warning("odd\x1b[31m")
    events.REQUEST.reset(token)

    named = 'client=000000000000 endpoint="POST /v1/check-in" request=ab12 address=192.0.2.7'
    first, second = (line.split(" ", 1)[1] for line in str(log).splitlines())
    assert first == f"INFO refused code=forbidden {named}"
    assert second == f"WARNING elsewhere: odd [31m {named}"


def test_a_flood_leaves_some_lines_and_a_count_and_other_kinds_are_heard(log: Log) -> None:
    for n in range(12_000):
        events.note(Event.REFUSED, code="malformed", address=f"198.51.100.{n % 200}")
    events.note(Event.REFUSED, code="unauthorised")
    log.now = 61.0
    events.note(Event.ROUND_OPENED, task="photos", round=1)

    assert len(str(log)) < 5_000
    lines = [line.split(" ", 1)[1] for line in str(log).splitlines()]
    assert [line.split()[2] for line in lines[:21]] == [*20 * ["code=malformed"], "code=unauthorised"]
    assert lines[21:] == [
        "WARNING fedlens_server.events: refused malformed: ... and 11,980 more of this kind from 200 addresses in the "
        "last 61 s kept_back=11980 addresses=200",
        "INFO round-opened task=photos round=1",
    ]


def test_a_flood_in_one_task_hides_no_other_ones_events(log: Log) -> None:
    for n in range(500):
        events.note(Event.FAILED, task="pilot", round=n, reason="internal")
    events.note(Event.FAILED, task="production", round=1, reason="internal")

    assert str(log).count("task=pilot") == 20
    assert str(log).count("task=production") == 1


def test_messages_of_others_are_limited_by_where_they_are_written(log: Log) -> None:
    for n in range(1000):
        logging.getLogger("elsewhere").warning("odd bytes %d", n)
    log.lines.close()

    lines = str(log).splitlines()
    assert len(lines) == 601
    assert "and 400 more of this kind in the last 0 s" in lines[-1]


def test_a_credential_that_a_text_quotes_is_not_written(log: Log) -> None:
    secret = "Zm9vYmFyLWJheg-aAAAAAAAAAAAAAAAAAAAAAAAAAAA"
    events.note(Event.REFUSED, code="malformed", reason=f"found '{secret}', must be an id")
    logging.getLogger("elsewhere").error("no %s", secret)

    assert secret not in str(log)
    assert str(log).count("[removed]") == 2
