import threading
from concurrent.futures import CancelledError, ThreadPoolExecutor

import pytest

from fedlens_edge_client.emulation.fleet.client_executor import ClientExecutor


def test_a_call_that_is_still_queued_when_a_client_is_stopped_never_begins() -> None:
    with ThreadPoolExecutor(1) as thread:
        executor, done, others = ClientExecutor(thread), [], threading.Event()
        thread.submit(others.wait)
        queued = executor.submit(done.append, "trained")

        executor.stop_starting()
        others.set()

        with pytest.raises(CancelledError):
            queued.result()
        assert not done
        assert not executor.has_begun


def test_a_step_that_has_begun_submits_further_calls() -> None:
    with ThreadPoolExecutor(1) as thread:
        executor = ClientExecutor(thread)
        assert executor.submit(lambda: "embedded").result() == "embedded"

        executor.stop_starting()

        assert executor.submit(lambda: "trained").result() == "trained"


def test_a_stopped_client_begins_no_step_and_reports_it() -> None:
    with ThreadPoolExecutor(1) as thread:
        executor, refused, done = ClientExecutor(thread), [], []
        executor.on_refused = lambda: refused.append(True)

        executor.stop_starting()
        executor.submit(done.append, "trained")

        assert refused and not done
