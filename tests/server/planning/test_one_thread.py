"""One thread for numerical libraries, for one who wants it at a time."""

from threading import Event, Thread

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from fedlens_server.planning.one_thread import one_thread, sum_of_squares


def blas_threads() -> list[int]:
    return [each["num_threads"] for each in threadpool_info() if each["user_api"] == "blas"]


def test_of_two_at_a_time_each_has_one_thread_and_the_limit_ends_with_them() -> None:
    events, starting = list[object](), Event()

    def other() -> None:
        starting.set()
        with one_thread():
            events.append(set(blas_threads()))

    before = blas_threads()
    with one_thread():
        second = Thread(target=other)
        second.start()
        starting.wait()
        second.join(0.1)  # time in which it would begin, if it did not wait
        events.append("the first ends")
    second.join()

    assert events == ["the first ends", {1}]
    assert blas_threads() == before


@pytest.mark.parametrize("seed", range(5))
def test_a_sum_of_squares_does_not_depend_on_the_number_of_threads(seed: int) -> None:
    vector = np.random.default_rng(seed).standard_normal(1 << 16)
    sums = []
    for threads in (1, 2):
        with threadpool_limits(threads):
            sums.append(sum_of_squares(vector))

    assert sums[0] == sums[1]
    assert sums[0] == pytest.approx(sum(x * x for x in vector.tolist()))
