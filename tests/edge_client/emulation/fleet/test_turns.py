import threading
from concurrent.futures import CancelledError, ThreadPoolExecutor

import pytest

from fedlens_edge_client.emulation.fleet.turns import Turns


def test_a_turn_that_is_still_queued_when_a_client_is_held_never_begins() -> None:
    with ThreadPoolExecutor(1) as thread:
        turns, done, others = Turns(thread), [], threading.Event()
        thread.submit(others.wait)
        queued = turns.submit(done.append, "trained")

        turns.hold()
        others.set()

        with pytest.raises(CancelledError):
            queued.result()
        assert not done
        assert not turns.has_begun


def test_what_has_begun_gets_its_further_turns() -> None:
    with ThreadPoolExecutor(1) as thread:
        turns = Turns(thread)
        assert turns.submit(lambda: "embedded").result() == "embedded"

        turns.hold()

        assert turns.submit(lambda: "trained").result() == "trained"


def test_a_held_client_begins_nothing_and_tells_it() -> None:
    with ThreadPoolExecutor(1) as thread:
        turns, refused, done = Turns(thread), [], []
        turns.on_refused = lambda: refused.append(True)

        turns.hold()
        turns.submit(done.append, "trained")

        assert refused and not done
